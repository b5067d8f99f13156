from tensorflow.keras import backend as K

K.set_floatx('float16')
K.set_epsilon(1e-4)
