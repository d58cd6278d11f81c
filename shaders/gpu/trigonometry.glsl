// Sine and cosine of any angle. Devices guarantee accuracy only near zero, but positions give large angles.

// (sin x, cos x), to about 1e-6 for |x| up to 1e5: reduced to a quarter turn in three steps (Cody & Waite 1980), then
// minimax polynomials (Moshier's Cephes).
vec2 sin_cos(float x) {
    precise float quarters = round(x * 0.63661977236);
    precise float r = x - quarters * 1.5703125;
    r = r - quarters * 4.837512969970703125e-4;
    r = r - quarters * 7.549789948768648e-8;
    float square = r * r;
    float sine = fma(r * square, fma(square, fma(square, -1.9515295891e-4, 8.3321608736e-3), -1.6666654611e-1), r);
    float cosine = fma(square * square, fma(square, fma(square, 2.443315711809948e-5, -1.388731625493765e-3), 4.166664568298827e-2),
                       fma(square, -0.5, 1.0));
    int quadrant = int(quarters) & 3;
    vec2 result = (quadrant & 1) == 0 ? vec2(sine, cosine) : vec2(cosine, sine);
    if ((quadrant & 2) != 0) result.x = -result.x;
    if (((quadrant + 1) & 2) != 0) result.y = -result.y;
    return result;
}
