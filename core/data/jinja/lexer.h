// Cuts a template into tokens: text between tags, and within tags names, numbers, texts and
// operators. White space around tags is gone, as transformers sets Jinja2 up (trim_blocks,
// lstrip_blocks) and as the tags themselves ask ({%- -%}).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::jinja {

struct Token {
  enum class Kind {
    kData,      // text between tags
    kBlock,     // {%
    kBlockEnd,  // %}
    kPrint,     // {{
    kPrintEnd,  // }}
    kName,
    kText,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;

  bool Is(Kind of, std::string_view with) const { return kind == of && text == with; }
};

// The last token is kEnd. InvalidArgument is "NAME:LINE: ...".
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source, std::string_view name);

}  // namespace shoal::jinja
