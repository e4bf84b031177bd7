"""Records: TFRecord files, tf.train.Example and GraphTensors."""
