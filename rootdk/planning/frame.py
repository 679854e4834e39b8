"""The call frame: everything a kernel learns at run time, as named 64-bit words in one block of memory.

The engine writes it, the kernel reads it; both go by this table. Strides and offsets are bytes. What changes from call
to call of one shape comes first, so that a repeated call writes only that.
"""

__all__ = ["CALL_WORDS", "FRAME"]

_OPERANDS = ("query", "key", "value", "output", "lse")
_GRADIENTS = ("grad_output", "grad_lse", "grad_query", "grad_key", "grad_value")

CALL_WORDS = (
    # worker bookkeeping: the next task, the next worker's number; each worker takes its own scratch memory
    "next_task", "next_worker", "scratch", "fault",
    # addresses of the operands; lse and sinks 0 where there are none
    *_OPERANDS, "sinks",
    # the mods' values: 8-byte constants; (address, shape, strides) per array; addresses of range tables
    "constants", "arrays", "tables",
    # where chunks of keys meet: sums of outputs per chunk, or of query gradients per key head; how many chunks of each
    # key head are done
    "head_sums", "turns",
    # backward only: addresses, grad_lse 0 where there is none; for each task, (address, shape, strides) of the gradient
    # of each captured array
    *_GRADIENTS, "grad_arrays",
)  # fmt: skip
"""Words that differ between calls of one shape, in the order of the frame's start."""

_SHAPE_WORDS = (
    # lengths; heads_per_kv = heads // kv_heads
    "heads", "heads_per_kv", "q_len", "kv_len", "d_k", "d_v",
    # the partition: all panels are panel_vectors wide, the first wide_panels one more; tasks of several panels
    "tasks", "panels", "panel_vectors", "wide_panels", "panels_per_task", "tasks_per_head", "panel_bytes",
    "scratch_bytes",
    # float64 bits: what queries are multiplied by; 0 or 1: they are multiplied by log2 e too
    "scale", "log2_scores",
    # of dropout: 64 bits; a weight stays where its word exceeds the limit, an unsigned number; float64 bits: its
    # factor, 1 where there is none
    "dropout_seed", "dropout_limit", "dropout_scale",
    # 0 or 1: rows of keys or values are copied to scratch block by block
    "pack_key", "pack_value",
    # backward: items are chunks of the keys of one key head; a task is a lot of consecutive items
    "items", "items_per_task", "kv_heads", "padded_q_len",
    # per operand: byte offset of each batch element (a table); head, row and element strides
    *[f"{operand}_{part}" for operand in (*_OPERANDS, *_GRADIENTS) for part in ("batch", "head", "row", "element")],
)  # fmt: skip

FRAME: dict[str, int] = {name: word for word, name in enumerate((*CALL_WORDS, *_SHAPE_WORDS))}
