#include "core/data/jinja/targets.h"

#include <algorithm>

namespace shoal::jinja {
namespace {

// Calls add(begin, end) for each run of one origin.
template <typename Add>
void ForRuns(const Text& text, Add add) {
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    add(TextRange{begin, run.end}, run.origin);
    begin = run.end;
  }
}

template <typename Is>
std::vector<TextRange> Joined(const Text& text, Is is) {
  std::vector<TextRange> spans;
  ForRuns(text, [&](TextRange span, Origin origin) {
    if (!is(origin)) {
      return;
    }
    if (!spans.empty() && spans.back().end == span.begin) {
      spans.back().end = span.end;
    } else {
      spans.push_back(span);
    }
  });
  return spans;
}

// The end of the longest beginning of `prompt` in `text`, of equally long ones the last; 0 where
// not even its first character is there. As Knuth, Morris and Pratt find it.
size_t EndOfLongestBeginning(std::string_view text, std::string_view prompt) {
  // By length: the longest beginning that is also an end of so much of the prompt.
  std::vector<size_t> shorter(prompt.size() + 1, 0);
  size_t matched = 0;
  const auto take = [&](char byte) {
    while (matched > 0 && (matched == prompt.size() || prompt[matched] != byte)) {
      matched = shorter[matched];
    }
    matched += matched < prompt.size() && prompt[matched] == byte ? 1 : 0;
  };
  for (size_t i = 1; i < prompt.size(); ++i) {
    take(prompt[i]);
    shorter[i + 1] = matched;
  }
  matched = 0;
  size_t longest = 0;
  size_t end = 0;
  for (size_t i = 0; i < text.size() && !prompt.empty(); ++i) {
    take(text[i]);
    if (matched > 0 && matched >= longest) {
      longest = matched;
      end = i + 1;
    }
  }
  return end;
}

size_t FirstStop(const std::vector<SpecialToken>& specials, size_t from, size_t none) {
  const auto stop = std::find_if(specials.begin(), specials.end(), [&](const SpecialToken& token) {
    return token.stops && token.span.begin >= from;
  });
  return stop == specials.end() ? none : stop->span.begin;
}

}  // namespace

std::vector<TextRange> TemplateSpans(const Text& text) {
  return Joined(text, [](Origin origin) { return origin.source == Origin::kTemplate; });
}

std::vector<TextRange> GenerationSpans(const Text& text) {
  return Joined(text, [](Origin origin) { return origin.generation; });
}

std::optional<TextRange> MessageSpan(const Text& text, int32_t source, std::string_view prompt,
                                     const std::vector<SpecialToken>& specials) {
  std::optional<TextRange> message;
  size_t data_before = 0;               // where data before the message ends
  size_t data_after = text.size() + 1;  // where data behind it begins
  size_t stop = text.size() + 1;        // of the first special token behind it that stops
  ForRuns(text, [&](TextRange span, Origin origin) {
    if (origin.source == source && span.begin < stop) {
      if (!message.has_value()) {
        stop = FirstStop(specials, span.begin, stop);
      }
      message = TextRange{message.has_value() ? message->begin : span.begin, span.end};
      data_after = text.size() + 1;
    } else if (origin.source != Origin::kTemplate) {
      data_before = message.has_value() ? data_before : span.end;
      data_after = std::min(data_after, span.begin);
    }
  });
  if (!message.has_value()) {
    return std::nullopt;
  }
  const std::string_view before =
      std::string_view(text.str()).substr(data_before, message->begin - data_before);
  if (const size_t end = EndOfLongestBeginning(before, prompt); end > 0) {
    message->begin = data_before + end;
  }
  auto special = std::find_if(specials.begin(), specials.end(), [&](const SpecialToken& token) {
    return token.span.begin >= message->end;
  });
  if (special == specials.end() || special->span.begin >= data_after) {
    return message;
  }
  message->end = special->span.end;
  for (++special;
       special != specials.end() && special->stops && special->span.begin == message->end;
       ++special) {
    message->end = special->span.end;
  }
  return message;
}

}  // namespace shoal::jinja
