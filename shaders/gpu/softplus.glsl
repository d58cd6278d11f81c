// ln(1 + e^x), as `softplus` in `lanes.rs` computes it: the logarithm of the hardware is inexact near 1.

float softplus(float x) {
    float t = exp(-abs(x));
    float s = t / (2.0 + t);
    float square = s * s;
    float series = 1.0 / 15.0;
    series = series * square + 1.0 / 13.0;
    series = series * square + 1.0 / 11.0;
    series = series * square + 1.0 / 9.0;
    series = series * square + 1.0 / 7.0;
    series = series * square + 1.0 / 5.0;
    series = series * square + 1.0 / 3.0;
    series = series * square + 1.0;
    return max(x, 0.0) + 2.0 * s * series;
}
