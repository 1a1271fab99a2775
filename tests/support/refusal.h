// For tests of what is refused: the message, and what it has to mention.
// defines: refusal(), mentions()
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace escalera {

/// The message with which `action` is refused (UsageError); "" if it is not. Other exceptions pass through.
template <class Action>
std::string refusal(Action&& action) {
  return message_of<UsageError>(action);
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
