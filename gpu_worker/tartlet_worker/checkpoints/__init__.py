"""What the files of a checkpoint say: configuration, tokenizer, names, shapes and values of tensors.

Belongs here: reading and checking files, and writing random checkpoints for tests and benchmarks. `model_config` is the
only module of the worker that knows the names of model families. Never here: layers, pools, devices.
"""
