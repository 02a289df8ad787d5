#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/data/tokenizer/regex.h"

#include <pcre2.h>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr uint32_t kMatchLimit = 2'000'000;   // backtracking steps per match
constexpr uint32_t kHeapLimitKiB = 32 << 10;  // memory of one match
constexpr size_t kJitStackBytes = 1 << 20;

using Code = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;

std::string ErrorText(int error) {
  unsigned char buffer[256];
  if (pcre2_get_error_message(error, buffer, sizeof(buffer)) < 0) {
    return fmt::format("error {}", error);
  }
  return reinterpret_cast<const char*>(buffer);
}

Code CompileRaw(const std::string& pattern, int* error, size_t* offset) {
  return Code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, error, offset, nullptr),
      &pcre2_code_free);
}

// PCRE2 takes \p{Han} as "is used with Han"; Oniguruma as the script itself.
bool IsScript(std::string_view name) {
  int error = 0;
  size_t offset = 0;
  return name.size() > 2 && name.find(':') == std::string_view::npos &&
         CompileRaw(fmt::format("\\p{{sc:{}}}", name), &error, &offset) != nullptr;
}

// Rewrites the escape of `pattern` at `i` (the backslash) into `out`; moves i past it.
absl::Status RewriteEscape(std::string_view pattern, bool in_class, size_t& i, std::string& out) {
  if (i + 1 >= pattern.size()) {
    return InvalidArgument("regular expression '{}' ends in a backslash", pattern);
  }
  const char letter = pattern[i + 1];
  const std::string_view rest = pattern.substr(i + 2);
  i += 2;
  switch (letter) {
    case 's':
      out += "\\p{White_Space}";
      return absl::OkStatus();
    case 'S':
      out += "\\P{White_Space}";
      return absl::OkStatus();
    case 'w':
      out += in_class ? "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
                      : "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
      return absl::OkStatus();
    case 'W':
    case 'b':
    case 'B':
    case 'h':
    case 'H':
    case 'X':
    case 'R':
    case 'K':
    case 'Q':
    case 'E':
      return InvalidArgument("regular expression '{}': \\{} is not supported", pattern, letter);
    case 'p':
    case 'P': {
      const size_t close = rest.find('}');
      if (!rest.empty() && rest[0] == '{' && close != std::string_view::npos) {
        const std::string_view name = rest.substr(1, close - 1);
        out += fmt::format("\\{}{{{}{}}}", letter, IsScript(name) ? "sc:" : "", name);
        i += close + 1;
        return absl::OkStatus();
      }
      break;
    }
    default:
      break;
  }
  out += '\\';
  out += letter;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ToPcre2(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  size_t i = 0;
  while (i < pattern.size()) {
    const char c = pattern[i];
    if (c == '\\') {
      SHOAL_RETURN_IF_ERROR(RewriteEscape(pattern, in_class, i, out));
      continue;
    }
    if (in_class && (c == '[' || (c == '&' && pattern.substr(i, 2) == "&&"))) {
      return InvalidArgument("regular expression '{}': nested classes and && are not supported",
                             pattern);
    }
    if (pattern.substr(i, 2) == "(*") {
      return InvalidArgument("regular expression '{}': verbs (*...) are not supported", pattern);
    }
    in_class = c == '[' || (in_class && c != ']');
    out += c;
    ++i;
    if (c == '[') {
      if (i < pattern.size() && pattern[i] == '^') {
        out += '^';
        ++i;
      }
      if (i < pattern.size() && pattern[i] == ']') {
        return InvalidArgument(
            "regular expression '{}': a class that begins with ']' is not supported", pattern);
      }
    }
  }
  return out;
}

// What one thread needs for matching; made once per thread.
struct Matcher {
  Matcher()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    SHOAL_CHECK(data != nullptr && context != nullptr);
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKiB);
    if (stack != nullptr) {
      pcre2_jit_stack_assign(context, nullptr, stack);
    }
  }
  ~Matcher() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

struct Regex::State {
  Code code;
  std::string pattern;
};

Regex::Regex(std::unique_ptr<State> state) : state_(std::move(state)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    return InvalidArgument("a regular expression has {} bytes; from 1 to {} are read",
                           pattern.size(), kMaxPatternBytes);
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string rewritten, ToPcre2(pattern));
  int error = 0;
  size_t offset = 0;
  Code code = CompileRaw(rewritten, &error, &offset);
  if (code == nullptr) {
    return InvalidArgument("regular expression '{}': {} (near byte {})", pattern, ErrorText(error),
                           offset);
  }
  // Without the just-in-time compiler (if the kernel forbids it) matching is slower, but gives the
  // same results.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::make_unique<State>(State{std::move(code), std::string(pattern)}));
}

absl::StatusOr<std::optional<TextRange>> Regex::Find(std::string_view text, size_t from) const {
  static thread_local const Matcher matcher;
  const int result =
      pcre2_match(state_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                  PCRE2_NO_UTF_CHECK, matcher.data, matcher.context);
  if (result == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (result < 0) {
    return ResourceExhausted("regular expression '{}' gave up: {}", state_->pattern,
                             ErrorText(result));
  }
  const size_t* found = pcre2_get_ovector_pointer(matcher.data);
  return TextRange{found[0], found[1]};
}

}  // namespace shoal::worker
