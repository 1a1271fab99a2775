// JSON files that people write by hand, read so that their slips are found.
// defines: read_json_file()
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace escalera {

/// The object in `file`. Throws UsageError with the file and the place for a file that cannot be read, malformed JSON (line
/// and column), a value that is no object, and a key that appears twice in one object (its path), which JSON itself lets
/// through.
nlohmann::json read_json_file(const std::string& file);

}  // namespace escalera
