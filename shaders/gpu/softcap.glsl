// cap * tanh(x / cap), in a form in which no large x overflows.
float softcap(float x, float cap) {
    return cap * (1.0 - 2.0 / (1.0 + exp(2.0 * x / cap)));
}
