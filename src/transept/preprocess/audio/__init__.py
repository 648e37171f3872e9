"""Feature extractors and the CTC tokenizer: sounds in, ``input_values`` out, and ids back to text."""
