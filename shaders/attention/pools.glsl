// Pools of positions, each with an entry that is stored as values are: [block, slot, stride].

layout(constant_id = 11) const uint POOL = 0; // positions of a pool; 0: there are none

// Slots of a block for entries.
const uint ENTRY_SLOTS = POOL == 0 || POOL > BLOCK_TOKENS ? 1 : BLOCK_TOKENS / (POOL == 0 ? 1 : POOL);

// The slot of the entry of the pool whose last position has this slot.
uint entry_slot(uint slot) {
    return slot / (BLOCK_TOKENS / ENTRY_SLOTS);
}
