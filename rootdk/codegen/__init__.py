"""Problem and schedule to LLVM IR."""
