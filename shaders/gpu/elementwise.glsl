// Ops that compute each value by itself: one or two inputs, and an output of the same shape.

layout(push_constant, scalar) uniform Push {
    Floats a;
    Floats b;
    Floats y;
    Step step;
    uint row_kind;
    uint width;
    uint variant;
    float parameter;
};

// The index of this invocation's value; `false` if it has none.
bool find_value(out uint index) {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    index = row * width + column;
    return row < count_rows(step, row_kind) && column < width;
}
