// "Did you mean ...?" for mistyped options, keys and names.
// defines: nearest_name()
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace escalera {

/// The name among `names` that `word` was probably meant to be, or "" if none is near: at most one slip (a letter too much,
/// too few, wrong, or two swapped) per three letters. Letter case and '-' against '_' count nothing.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace escalera
