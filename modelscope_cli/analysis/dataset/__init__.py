"""Problems of a folder of images, found without a model."""
