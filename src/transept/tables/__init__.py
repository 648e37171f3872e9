"""Files of rows: text, tables and Parquet, read for training and for long work, and rows in files of Arrow."""
