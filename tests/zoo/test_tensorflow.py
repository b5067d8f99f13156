"""Models for TensorFlow: keras.applications."""

from __future__ import annotations

import keras_models
import pytest
import tensorflow as tf
from in_tensorflow import Tensorflow
from properties import Properties
from zoo import Subject, parameters

from ampbridge_testing.growth import Growth

QUICK = {"resnet"}

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture(scope="module", params=parameters(keras_models.SPECIMENS, QUICK))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, Tensorflow(), tmp_path_factory.mktemp("zoo"))


class TestTensorflow(Properties):
    """The native loop is that of Keras' own dtype policies."""

    # TensorFlow's threads keep some megabytes more now and then: in 24 steps of mobilenet-v2 up to three,
    # while 600 of them stay within two. A step's activations, which a leak would keep, are as large each.
    growth_bound = Growth(objects=0.5, memory=512 * 1024)
