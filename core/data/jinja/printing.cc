#include "core/data/jinja/printing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/base/utf8.h"
#include "core/data/jinja/characters.h"
#include "fmt/format.h"

namespace shoal::jinja {
namespace {

constexpr size_t kMaxEscape = 6;   // bytes of output for a byte of text: \u0001
constexpr size_t kMaxNumber = 32;  // bytes of a number, and of all words

std::string FloatText(double number, bool json) {
  if (std::isnan(number)) {
    return json ? "NaN" : "nan";
  }
  if (std::isinf(number)) {
    const std::string_view name = json ? "Infinity" : "inf";
    return fmt::format("{}{}", number < 0 ? "-" : "", name);
  }
  std::string text = fmt::format("{}", number);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// The pieces of a text that `escape` changes, a character at a time; empty leaves it as it is.
template <typename Escape>
void AppendEscaped(const Text& text, Escape escape, Text& out) {
  const std::string_view all = text.str();
  size_t begin = 0;  // of what is not appended yet
  for (size_t at = 0; at < all.size(); at += CharacterLength(all[at])) {
    const std::string escaped = escape(FirstCharacter(all.substr(at)));
    if (!escaped.empty()) {
      out.AppendPart(text, begin, at);
      out.Append(escaped, text.OriginAt(at));
      begin = at + CharacterLength(all[at]);
    }
  }
  out.AppendPart(text, begin, all.size());
}

std::string ShortEscape(char32_t character) {
  switch (character) {
    case U'\\':
      return "\\\\";
    case U'\n':
      return "\\n";
    case U'\r':
      return "\\r";
    case U'\t':
      return "\\t";
    default:
      return "";
  }
}

std::string CodeEscape(uint32_t code) {
  return code < 0x100     ? fmt::format("\\x{:02x}", code)
         : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                          : fmt::format("\\U{:08x}", code);
}

void AppendRepr(const Text& text, Text& out) {
  const bool has_single = text.str().find('\'') != std::string::npos;
  const bool has_double = text.str().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.Append({&quote, 1});
  AppendEscaped(
      text,
      [quote](char32_t c) -> std::string {
        if (c == static_cast<char32_t>(quote)) {
          return {'\\', quote};
        }
        const std::string known = ShortEscape(c);
        return known.empty() && !IsPrintable(c) ? CodeEscape(static_cast<uint32_t>(c)) : known;
      },
      out);
  out.Append({&quote, 1});
}

std::string JsonEscape(char32_t c, bool ascii) {
  if (c == U'"') {
    return "\\\"";
  }
  if (c == U'\b') {
    return "\\b";
  }
  if (c == U'\f') {
    return "\\f";
  }
  const std::string known = ShortEscape(c);
  if (!known.empty() || (c >= 0x20 && (c <= 0x7F || !ascii))) {
    return known;
  }
  if (c < 0x10000) {
    return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
  const uint32_t pair = static_cast<uint32_t>(c) - 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (pair >> 10), 0xDC00 + (pair & 0x3FF));
}

void AppendJson(const Text& text, bool ascii, Text& out) {
  out.Append("\"");
  AppendEscaped(
      text, [ascii](char32_t c) { return JsonEscape(c, ascii); }, out);
  out.Append("\"");
}

// Writes values of either kind, which differ in their words.
class Printer {
 public:
  Printer(const JsonStyle* json, Budget& budget) : json_(json), budget_(budget) {}

  // NOLINTNEXTLINE(misc-no-recursion): as deep as a value is
  absl::Status Append(const Value& value, int level) {
    SHOAL_RETURN_IF_ERROR(budget_.Make(AroundEach(level)));
    if (const Text* text = value.text(); text != nullptr) {
      SHOAL_RETURN_IF_ERROR(ChargeEscaped(*text));
      json_ != nullptr ? AppendJson(*text, json_->ascii, out_) : AppendRepr(*text, out_);
    } else if (const List* list = value.list(); list != nullptr) {
      return AppendList(*list, level);
    } else if (const Dict* dict = value.dict(); dict != nullptr) {
      return AppendDict(*dict, level);
    } else if (value.none()) {
      out_.Append(json_ != nullptr ? "null" : "None");
    } else if (const bool* boolean = value.As<bool>(); boolean != nullptr) {
      out_.Append(json_ != nullptr ? (*boolean ? "true" : "false") : (*boolean ? "True" : "False"));
    } else if (value.IsInteger()) {
      out_.Append(fmt::format("{}", value.integer()));
    } else if (value.IsNumber()) {
      out_.Append(FloatText(value.number(), json_ != nullptr));
    } else {
      return InvalidArgument("{}{} cannot be written{}", value.TypeName(),
                             value.undefined() ? " '" + value.As<Undefined>()->name + "'" : "",
                             json_ != nullptr ? " as JSON" : "");
    }
    return absl::OkStatus();
  }

  Text Take() { return std::move(out_); }

 private:
  // What a value takes at most beside its elements or characters: itself or its brackets, what
  // stands before it, and the break before the closing bracket.
  size_t AroundEach(int level) const {
    const size_t indent = json_ == nullptr ? 0 : static_cast<size_t>(std::max(json_->indent, 0));
    const size_t separators =
        json_ == nullptr ? 0 : json_->item_separator.size() + json_->key_separator.size();
    return kMaxNumber + separators + 2 * indent * static_cast<size_t>(level);
  }
  absl::Status ChargeEscaped(const Text& text) {
    SHOAL_RETURN_IF_ERROR(budget_.Walk(text.size()));
    return budget_.Make(kMaxEscape * text.memory());
  }
  void Break(int level) {
    if (json_ != nullptr && json_->indent >= 0) {
      out_.Append("\n" + std::string(static_cast<size_t>(level * json_->indent), ' '));
    }
  }
  void Separate(int level) {
    out_.Append(json_ != nullptr ? std::string_view(json_->item_separator) : ", ");
    Break(level);
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  absl::Status AppendList(const List& list, int level) {
    const bool tuple = list.tuple && json_ == nullptr;
    out_.Append(tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      i == 0 ? Break(level + 1) : Separate(level + 1);
      SHOAL_RETURN_IF_ERROR(Append(list.items[i], level + 1));
    }
    if (!list.items.empty()) {
      Break(level);
    }
    out_.Append(tuple ? (list.items.size() == 1 ? ",)" : ")") : "]");
    return absl::OkStatus();
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  absl::Status AppendDict(const Dict& dict, int level) {
    SHOAL_RETURN_IF_ERROR(budget_.Make(sizeof(void*), dict.items.size()));
    std::vector<const std::pair<Text, Value>*> items;
    size_t key_bytes = 0;
    for (const auto& item : dict.items) {
      items.push_back(&item);
      key_bytes += item.first.size();
    }
    if (json_ != nullptr && json_->sort_keys) {
      const auto rounds = static_cast<size_t>(std::bit_width(items.size()));
      SHOAL_RETURN_IF_ERROR(budget_.Spend(rounds * (items.size() + key_bytes / 64)));
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return a->first.str() < b->first.str();
      });
    }
    out_.Append("{");
    for (size_t i = 0; i < items.size(); ++i) {
      i == 0 ? Break(level + 1) : Separate(level + 1);
      SHOAL_RETURN_IF_ERROR(ChargeEscaped(items[i]->first));
      if (json_ != nullptr) {
        AppendJson(items[i]->first, json_->ascii, out_);
        out_.Append(json_->key_separator);
      } else {
        AppendRepr(items[i]->first, out_);
        out_.Append(": ");
      }
      SHOAL_RETURN_IF_ERROR(Append(items[i]->second, level + 1));
    }
    if (!items.empty()) {
      Break(level);
    }
    out_.Append("}");
    return absl::OkStatus();
  }

  const JsonStyle* json_;  // null: as Python writes it
  Budget& budget_;
  Text out_;
};

}  // namespace

absl::StatusOr<Text> ToText(const Value& value, Budget& budget) {
  if (value.text() != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes + value.text()->memory()));
    return *value.text();
  }
  if (value.undefined()) {
    return Text();
  }
  Printer printer(nullptr, budget);
  SHOAL_RETURN_IF_ERROR(printer.Append(value, 0));
  return printer.Take();
}

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  Printer printer(&style, budget);
  SHOAL_RETURN_IF_ERROR(printer.Append(value, 0));
  return printer.Take();
}

}  // namespace shoal::jinja
