// Numbers and tables as people read them.
// defines: TextTable, human_count(), human_bytes(), human_time()
#pragma once

#include <string>
#include <vector>

#include "common/core/dtype.h"

namespace escalera {

/// Three digits and a power of 1000: 950, 12.3K, 1.05M, 80.0B.
std::string human_count(double count);
/// The same for bytes: 950 B, 12.3 MB, 1.05 GB (powers of 1000).
std::string human_bytes(double bytes);
/// 0:07, 12:34, 1:02:03.
std::string human_time(double seconds);
/// 1,234,567: all digits, in groups.
std::string grouped(Index number);

/// Aligned plain text: the first column to the left, the others to the right.
class TextTable {
 public:
  /// The titles of the columns.
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  /// As many cells as there are columns.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Header, a rule, and the rows, each line indented by two and ended.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace escalera
