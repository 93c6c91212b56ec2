"""From files to micro-batches: documents, tokens on disk, packing, and the hidden states kept of them."""
