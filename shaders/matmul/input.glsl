// Loads four values of a row of x, [rows, columns] in float32. Rows can end inside a run.

layout(constant_id = 3) const bool WHOLE_RUNS = true;

vec4 load_input(uint64_t x, uint columns, uint row, uint column) {
    uint64_t start = x + uint64_t(row) * columns * 4;
    if (WHOLE_RUNS) return FloatQuads(start).at[column / 4];
    vec4 quad = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4; i++) if (column + i < columns) quad[i] = Floats(start).at[column + i];
    return quad;
}
