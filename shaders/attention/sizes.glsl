// The lengths of keys and values, for the heads of an attention and for the cache (`attention/cache.glsl`).

layout(constant_id = 21) const uint KEY_DIM = 64;
layout(constant_id = 22) const uint VALUE_DIM = 64;
layout(constant_id = 23) const bool VALUES_IN_KEYS = false; // a value is the first values of its key

const uint KEY_STRIDE = (KEY_DIM + VALUES_TOGETHER - 1) / VALUES_TOGETHER * VALUES_TOGETHER;
const uint OWN_VALUE_STRIDE = (VALUE_DIM + VALUES_TOGETHER - 1) / VALUES_TOGETHER * VALUES_TOGETHER;
const uint VALUE_STRIDE = VALUES_IN_KEYS ? KEY_STRIDE : OWN_VALUE_STRIDE;
