// For tests of what is refused: the message, and what it has to mention.
// defines: refusal(), mentions()
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/core/error.h"

namespace escalera {

/// The message of the UsageError that `action` throws; "" if it throws none. Other exceptions pass.
template <class Action>
std::string refusal(Action&& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// Whether each of `parts` is in `message`.
inline testing::AssertionResult mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos) {
      return testing::AssertionFailure()
             << "'" << part << "' is not in: " << (message.empty() ? "(nothing)" : message);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace escalera
