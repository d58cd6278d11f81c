// Routes by expert, as `group.comp` leaves them: their number, in 16 bytes, then *blocks*, each an expert and up to as many
// routes to it as a workgroup takes on at once. An expert's blocks stand together, and all but the last are full.

// Bytes of a block: the expert, how many routes, nothing twice, and the routes.
uint block_bytes(uint routes) {
    return 16 + 4 * routes;
}

uint64_t find_block(uint64_t blocks, uint block, uint routes) {
    return blocks + 16 + uint64_t(block) * block_bytes(routes);
}
