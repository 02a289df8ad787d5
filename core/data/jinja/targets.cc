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

// The end of the longest beginning of the prompt in `within`, of equally long ones the last, that
// holds its head and ends inside no special token; nullopt if there is none. As Knuth, Morris and
// Pratt find it.
std::optional<size_t> EndOfLongestBeginning(std::string_view text, TextRange within,
                                            const Prompt& prompt,
                                            const std::vector<SpecialToken>& specials) {
  // By length: the longest beginning that is also an end of so much of the prompt.
  std::vector<size_t> shorter(prompt.text.size() + 1, 0);
  size_t matched = 0;
  const auto take = [&](char byte) {
    while (matched > 0 && (matched == prompt.text.size() || prompt.text[matched] != byte)) {
      matched = shorter[matched];
    }
    matched += matched < prompt.text.size() && prompt.text[matched] == byte ? 1 : 0;
  };
  for (size_t i = 1; i < prompt.text.size(); ++i) {
    take(prompt.text[i]);
    shorter[i + 1] = matched;
  }
  matched = 0;
  size_t longest = std::max<size_t>(prompt.head, 1);
  std::optional<size_t> end;
  auto special = specials.begin();
  for (size_t i = within.begin; i < within.end && !prompt.text.empty(); ++i) {
    take(text[i]);
    while (special != specials.end() && special->span.end <= i + 1) {
      ++special;
    }
    const bool cuts = special != specials.end() && special->span.begin < i + 1;
    if (matched >= longest && !cuts) {
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

// Where what is said begins, of a message that begins at the end of `before`, which is the
// template's.
size_t BeginOf(TextRange before, std::string_view text, const Prompt& prompt,
               const std::vector<SpecialToken>& specials) {
  if (const auto end = EndOfLongestBeginning(text, before, prompt, specials); end.has_value()) {
    return *end;
  }
  size_t begin = before.end;
  for (const SpecialToken& token : specials) {
    if (prompt.has_special && token.span.begin >= before.begin && token.span.end <= before.end) {
      begin = token.span.end;
    }
  }
  return begin;
}

// Where it ends, if `behind` is the template's text behind the message's last character.
size_t EndOf(TextRange behind, std::string_view text, const Prompt& prompt,
             const std::vector<SpecialToken>& specials) {
  const auto from = [&](auto is) {
    return std::find_if(specials.begin(), specials.end(), [&](const SpecialToken& token) {
      return token.span.begin >= behind.begin && is(token);
    });
  };
  auto end = from([](const SpecialToken&) { return true; });
  const auto stop = from([](const SpecialToken& token) { return token.stops; });
  if (end == specials.end() || end->span.begin >= behind.end) {
    return behind.begin;
  }
  if (stop != specials.end() && stop->span.begin < behind.end) {
    const auto between = text.substr(behind.begin, stop->span.begin - behind.begin);
    const bool turns = prompt.head > 0 &&
                       between.find(prompt.text.substr(0, prompt.head)) != std::string_view::npos;
    end = turns ? end : stop;
  }
  size_t at = end->span.end;
  for (++end; end != specials.end() && end->stops && end->span.begin == at; ++end) {
    at = end->span.end;
  }
  return at;
}

}  // namespace

std::vector<TextRange> TemplateSpans(const Text& text) {
  return Joined(text, [](Origin origin) { return origin.source == Origin::kTemplate; });
}

std::vector<TextRange> GenerationSpans(const Text& text) {
  return Joined(text, [](Origin origin) { return origin.generation; });
}

Prompt Prompt::From(std::string_view text, const std::vector<SpecialToken>& specials) {
  if (!specials.empty()) {
    return {text, specials[0].span.end, true};
  }
  const size_t line = std::min(text.find_first_not_of(" \r\n\t"), text.size());
  return {text, std::min(text.find('\n', line), text.size()), false};
}

std::optional<TextRange> MessageSpan(const Text& text, int32_t source, const Prompt& prompt,
                                     const std::vector<SpecialToken>& specials) {
  std::optional<TextRange> message;
  size_t data_before = 0;               // where data before the message ends
  size_t data_after = text.size() + 1;  // where data behind it begins
  size_t stop = text.size() + 1;        // of the first special token behind it that stops
  ForRuns(text, [&](TextRange span, Origin origin) {
    if ((origin.source == source || origin.source == -source) && span.begin < stop) {
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
  message->begin = BeginOf({data_before, message->begin}, text.str(), prompt, specials);
  message->end = EndOf({message->end, data_after}, text.str(), prompt, specials);
  return message;
}

size_t BehindReasoning(const Text& text, TextRange span) {
  size_t end = span.begin;
  ForRuns(text, [&](TextRange run, Origin origin) {
    if (origin.source < 0 && run.begin < span.end && run.end > span.begin) {
      end = std::min(run.end, span.end);
    }
  });
  return end;
}

}  // namespace shoal::jinja
