"""Processors, one file a family: see :class:`transept.preprocess.processor.Processor`."""
