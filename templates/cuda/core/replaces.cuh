// Whether a sum takes the place of what there was, and is not added to it: where Config says
//
//     static constexpr bool REPLACES;   // optional
#pragma once

namespace monomorph {

template <class C, class = void>
constexpr bool REPLACED = false;
template <class C>
constexpr bool REPLACED<C, decltype(void(C::REPLACES))> = C::REPLACES;

}  // namespace monomorph
