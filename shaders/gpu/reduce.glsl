// Sums over a workgroup in one fixed order that does not depend on the subgroup size: a tree in shared memory.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

shared float lanes[WORKGROUP_SIZE];

// The sum of the values of all invocations, returned to each. All invocations must call it.
float workgroup_sum(float value) {
    uint lane = gl_LocalInvocationID.x;
    lanes[lane] = value;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) lanes[lane] += lanes[lane + stride];
        barrier();
    }
    float sum = lanes[0];
    barrier();
    return sum;
}

// The same for the maximum.
float workgroup_max(float value) {
    uint lane = gl_LocalInvocationID.x;
    lanes[lane] = value;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) lanes[lane] = max(lanes[lane], lanes[lane + stride]);
        barrier();
    }
    float largest = lanes[0];
    barrier();
    return largest;
}
