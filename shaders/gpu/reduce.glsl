// Sums over a workgroup in one fixed order that does not depend on the subgroup size: first some invocations add the values of
// others, then all add these parts. A tree would have fewer additions, but a barrier after each of its levels.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

const uint PARTS = WORKGROUP_SIZE < 32 ? WORKGROUP_SIZE : 32;

shared float lanes[WORKGROUP_SIZE];
shared float parts[PARTS];

// The sum of the values of all invocations, returned to each. All invocations must call it.
float workgroup_sum(float value) {
    uint lane = gl_LocalInvocationID.x;
    lanes[lane] = value;
    barrier();
    if (lane < PARTS) {
        float part = value;
        for (uint other = lane + PARTS; other < WORKGROUP_SIZE; other += PARTS) part += lanes[other];
        parts[lane] = part;
    }
    barrier();
    float sum = 0.0;
    [[unroll]] for (uint part = 0; part < PARTS; part++) sum += parts[part];
    return sum;
}

// The same for the maximum.
float workgroup_max(float value) {
    uint lane = gl_LocalInvocationID.x;
    lanes[lane] = value;
    barrier();
    if (lane < PARTS) {
        float part = value;
        for (uint other = lane + PARTS; other < WORKGROUP_SIZE; other += PARTS) part = max(part, lanes[other]);
        parts[lane] = part;
    }
    barrier();
    float largest = parts[0];
    [[unroll]] for (uint part = 1; part < PARTS; part++) largest = max(largest, parts[part]);
    return largest;
}
