// A number that multiplies what a kernel makes, where its Config says one: `static constexpr float FACTOR`.
#pragma once

namespace monomorph {

template <class C, class = void>
constexpr float FACTOR_OF = 1.0f;
template <class C>
constexpr float FACTOR_OF<C, decltype(void(C::FACTOR))> = C::FACTOR;

}  // namespace monomorph
