// Bounds of numbers on the command line. The messages of CLI11's own checks show the largest
// double.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "CLI/CLI.hpp"
#include "fmt/format.h"

namespace shoal {

// Refuses numbers below `low`: "--steps: is '0', expected an integer of at least 1".
template <typename Number>
CLI::Validator AtLeast(Number low) {
  using Value = std::conditional_t<std::is_integral_v<Number>, int64_t, double>;
  const auto check = [low](std::string& text) {
    Value value{};
    if (CLI::detail::lexical_cast(text, value) && value >= Value{low}) {
      return std::string();
    }
    return fmt::format("is '{}', expected {} of at least {}", text,
                       std::is_integral_v<Number> ? "an integer" : "a number", low);
  };
  return {check, fmt::format("AT LEAST {}", low)};
}

}  // namespace shoal
