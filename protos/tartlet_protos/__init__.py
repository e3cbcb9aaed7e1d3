"""Generated code of protos/tartlet/v1 (`make protos`); never edited by hand."""
