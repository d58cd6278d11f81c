// Sums over a workgroup in one fixed order, whatever the size of a subgroup: a tree through shared memory.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

shared float lanes[WORKGROUP_SIZE];

// The sum of every invocation's value, in all of them. All invocations must come here.
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

// The same for the largest.
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
