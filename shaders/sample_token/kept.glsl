// The weight of a token, or 0 if it ranks after the cutoff.

uint64_t kept_weight(float logit, uint token, State state, float inverse_temperature) {
    uint far = magnitude(logit, state.largest, inverse_temperature);
    bool is_kept = far < state.cutoff_magnitude || (far == state.cutoff_magnitude && token <= state.cutoff_token);
    return is_kept ? weight(far) : uint64_t(0);
}
