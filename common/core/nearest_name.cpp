#include "common/core/nearest_name.h"

#include <algorithm>
#include <cctype>

namespace escalera {
namespace {

std::string folded(std::string_view word) {
  std::string result;
  for (const char letter : word) {
    result += letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return result;
}

/// Damerau's distance between neighbours: the fewest insertions, deletions, replacements and swaps of adjacent letters.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> table(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = i + j;
        continue;
      }
      const std::size_t replace = table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      table[i][j] = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
      }
    }
  }
  return table[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::string wanted = folded(word);
  // A whole line as a name is not a slip, and the table below grows with it.
  if (wanted.empty() || wanted.size() > 80) return "";
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t slips = distance(wanted, folded(name));
    if (slips < best_distance) {
      best = name;
      best_distance = slips;
    }
  }
  return best;
}

}  // namespace escalera
