__version__ = "2.4.0"
SUPPORT_MODEL = ["squeezeformer", "conformer", "deepspeech2"]
