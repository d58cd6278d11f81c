// Routes grouped by expert, as written by `group.comp`: the number of blocks, in 16 bytes, then the blocks. A block is
// an expert and up to as many of its routes as a workgroup computes. The blocks of an expert are consecutive; all but
// the last are full.

// Bytes of a block: the expert, the number of routes, two unused words, and the routes.
uint block_bytes(uint routes) {
    return 16 + 4 * routes;
}

uint64_t find_block(uint64_t blocks, uint block, uint routes) {
    return blocks + 16 + uint64_t(block) * block_bytes(routes);
}
