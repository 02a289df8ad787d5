// Values of keys, by their fields: what they may be, and how they are read and printed.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/nearest.h"
#include "core/base/status.h"
#include "core/job/job.h"
#include "core/job/job_schema.h"
#include "core/job/job_values.h"
#include "core/model/model_spec.h"

namespace shoal::plan {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::Reflection;
using proto::Key;

// Returns "lb-mini" for ASSIGNMENT_LB_MINI of Assignment.
std::string NameOf(const EnumValueDescriptor& value) {
  const std::string name = value.name().substr(value.type()->name().size() + 1);
  return absl::AsciiStrToLower(absl::StrReplaceAll(name, {{"_", "-"}}));
}

std::vector<std::string> NamesOf(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    names.push_back(NameOf(*type.value(i)));
  }
  return names;
}

std::string OneOf(const std::vector<std::string>& names) {
  return "one of " + absl::StrJoin(names, ", ");
}

NumberRange NumbersOf(const FieldDescriptor& field) {
  const Key& key = OptionsOf(field);
  NumberRange range{.low = key.low(), .low_open = key.low_open(), .high_open = key.high_open()};
  if (key.has_high()) {
    range.high = key.high();
  }
  return range;
}

IntegerRange IntegersOf(const FieldDescriptor& field) {
  const Key& key = OptionsOf(field);
  IntegerRange range{.low = static_cast<int64_t>(key.low())};
  if (key.has_high()) {
    range.high = static_cast<int64_t>(key.high());
  }
  return range;
}

constexpr std::array<std::pair<std::string_view, double>, 4> kOffloadNames = {
    {{"auto", OffloadedChunks::kAuto},
     {"none", 0.0},
     {"half", OffloadedChunks::kHalf},
     {"full", OffloadedChunks::kFull}}};

absl::StatusOr<double> ReadOffload(const YAML::Node& node, const NumberRange& range) {
  constexpr std::string_view kExpected = "auto, none, half, full or a number of chunks";
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, std::string(kExpected)));
  const auto named =
      std::ranges::find(kOffloadNames, text, [](const auto& name) { return name.first; });
  if (named != kOffloadNames.end()) {
    return named->second;
  }
  const absl::StatusOr<double> chunks = ParseNumber(node, range);
  if (!chunks.ok()) {
    return InvalidArgument("is '{}', expected {}", text.substr(0, 60), kExpected);
  }
  return chunks;
}

absl::StatusOr<double> ReadRate(const YAML::Node& node) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, "a rate like 3.1GB/s, or 0"));
  if (text == "0") {
    return 0;
  }
  const absl::StatusOr<double> rate = ParseRate(text);
  if (!rate.ok()) {
    return InvalidArgument("is '{}', expected a rate like 3.1GB/s, or 0", text.substr(0, 60));
  }
  return rate;
}

absl::StatusOr<double> ReadDouble(const YAML::Node& node, const FieldDescriptor& field) {
  switch (OptionsOf(field).kind()) {
    case Key::RATE:
      return ReadRate(node);
    case Key::OFFLOAD:
      return ReadOffload(node, NumbersOf(field));
    default:
      return ParseNumber(node, NumbersOf(field));
  }
}

absl::StatusOr<std::string> ReadShape(const YAML::Node& node) {
  SHOAL_ASSIGN_OR_RETURN(std::string name, ParseScalar(node, "the name of a shape"));
  if (!name.empty() && !NamedShape(name).has_value()) {
    return InvalidArgument("has the unknown shape '{}'; {}", name.substr(0, 60),
                           DidYouMean(name, NamedShapes()));
  }
  return name;
}

absl::StatusOr<std::string> ReadTemplate(const YAML::Node& node) {
  SHOAL_ASSIGN_OR_RETURN(std::string name, ParseText(node));
  SHOAL_RETURN_IF_ERROR(CheckTemplate(name));
  return name;
}

absl::StatusOr<std::string> ReadText(const YAML::Node& node, const FieldDescriptor& field) {
  switch (OptionsOf(field).kind()) {
    case Key::ADDRESS:
      return ParseAddresses(node);
    case Key::SHAPE:
      return ReadShape(node);
    case Key::TEMPLATE:
      return ReadTemplate(node);
    default:
      return ParseText(node);
  }
}

absl::StatusOr<int> ReadEnum(const YAML::Node& node, const EnumDescriptor& type) {
  const std::vector<std::string> names = NamesOf(type);
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, OneOf(names)));
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) {
    return InvalidArgument("is '{}', expected {}", text.substr(0, 60), OneOf(names));
  }
  return type.value(static_cast<int>(found - names.begin()))->number();
}

// Accepts "mlx5_0" or, for one of its ports, "mlx5_0:2".
bool IsDevice(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "1" : text.substr(colon + 1);
  const auto only = [](const std::string& part, std::string_view characters) {
    return !part.empty() && part.size() <= 63 &&
           part.find_first_not_of(characters) == std::string::npos;
  };
  return only(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") &&
         port.size() <= 3 && only(port, "0123456789") && port.front() != '0';
}

absl::StatusOr<std::vector<std::string>> ReadNames(const YAML::Node& node, const Key& key) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseTextList(node));
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (key.kind() == Key::TRANSPORTS &&
        std::ranges::find(key.names(), *name) == key.names().end()) {
      return InvalidArgument(
          "has the unknown transport '{}', expected some of shm, verbs (RDMA), tcp",
          name->substr(0, 60));
    }
    if (key.kind() == Key::DEVICES && !IsDevice(*name)) {
      return InvalidArgument("has '{}', expected device names like mlx5_0, or mlx5_0:2 for a port",
                             name->substr(0, 60));
    }
    if (std::find(names.begin(), name, *name) != name) {
      return InvalidArgument("has '{}' twice", *name);
    }
  }
  if (names.empty() && key.kind() == Key::TRANSPORTS) {
    return InvalidArgument("is an empty list, expected some of {}",
                           absl::StrJoin(key.names(), ", "));
  }
  return names;
}

// Reads a list of maps, of which each item is a message of single values.
absl::Status ReadMaps(const YAML::Node& node, Section& section, const FieldDescriptor& field) {
  if (!node.IsSequence()) {
    return InvalidArgument("is no list of maps");
  }
  const Reflection& reflection = *section.GetReflection();
  reflection.ClearField(&section, &field);
  for (const YAML::Node& map : node) {
    if (!map.IsMap()) {
      return InvalidArgument("has an item that is no map");
    }
    Section& item = *reflection.AddMessage(&section, &field);
    for (const auto& entry : map) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      const FieldDescriptor* const key = item.GetDescriptor()->FindFieldByName(name);
      if (key == nullptr) {
        return InvalidArgument("has the unknown key '{}'; {}", name.substr(0, 60),
                               DidYouMean(name, NamesIn(item)));
      }
      if (const absl::Status read = ReadValue(entry.second, item, *key); !read.ok()) {
        return InvalidArgument("has {}, which {}", name, Message(read));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadList(const YAML::Node& node, Section& section, const FieldDescriptor& field) {
  const Reflection& reflection = *section.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return ReadMaps(node, section, field);
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    SHOAL_ASSIGN_OR_RETURN(const auto names, ReadNames(node, OptionsOf(field)));
    reflection.ClearField(&section, &field);
    for (const std::string& name : names) {
      reflection.AddString(&section, &field, name);
    }
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const auto numbers, ParseNumberList(node, NumbersOf(field)));
  if (numbers.empty()) {
    return InvalidArgument("is an empty list, expected speeds like [1, 1, 0.5]");
  }
  reflection.ClearField(&section, &field);
  for (const double number : numbers) {
    reflection.AddDouble(&section, &field, number);
  }
  return absl::OkStatus();
}

bool IsVariable(std::string_view name) {
  return !name.empty() && name.size() <= 100 && !absl::ascii_isdigit(name.front()) &&
         std::ranges::all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// Reads a map, of which all are in one section. Keeps the names that `node` lacks.
absl::Status ReadMap(const YAML::Node& node, Section& section, const FieldDescriptor& field) {
  const auto& known = OptionsOf(field).names();
  if (!node.IsMap()) {
    return InvalidArgument("is not a map like {}", known.empty()
                                                       ? "{enable_thinking: false}"
                                                       : "{prompt: question, completion: answer}");
  }
  auto& data = static_cast<proto::DataOptions&>(section);
  auto& entries = field.number() == proto::DataOptions::kFieldsFieldNumber
                      ? *data.mutable_fields()
                      : *data.mutable_template_arguments();
  for (const auto& item : node) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
    if (!known.empty() && std::ranges::find(known, name) == known.end()) {
      return InvalidArgument("has the unknown key '{}'; {}", name.substr(0, 60),
                             DidYouMean(name, {known.begin(), known.end()}));
    }
    if (!IsVariable(name)) {
      return InvalidArgument("has the key '{}', which is no name of a variable",
                             name.substr(0, 60));
    }
    absl::StatusOr<std::string> text = ParseText(item.second);
    if (!text.ok()) {
      return InvalidArgument("has {}, which {}", name, Message(text.status()));
    }
    entries[name] = *std::move(text);
  }
  return absl::OkStatus();
}

std::string PrintDouble(double value, Key::Kind kind) {
  if (kind == Key::RATE) {
    return value > 0 ? PrintNumber(value) + "B/s" : "0";
  }
  if (kind == Key::OFFLOAD) {
    for (const auto& [name, named] : kOffloadNames) {
      if (value == named) {
        return std::string(name);
      }
    }
  }
  return PrintNumber(value);
}

// Returns a single value, unquoted.
std::string TextOf(const Section& section, const FieldDescriptor& field) {
  const Reflection& reflection = *section.GetReflection();
  const Key::Kind kind = OptionsOf(field).kind();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      const int64_t value = reflection.GetInt64(section, &field);
      return kind == Key::BYTES && value != 0 ? PrintBytes(value) : std::to_string(value);
    }
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(reflection.GetUInt64(section, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return PrintDouble(reflection.GetDouble(section, &field), kind);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(section, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return NameOf(*reflection.GetEnum(section, &field));
    default:
      return reflection.GetString(section, &field);
  }
}

std::vector<std::string> ItemsOf(const Section& section, const FieldDescriptor& field) {
  const Reflection& reflection = *section.GetReflection();
  std::vector<std::string> items;
  for (int i = 0; i < reflection.FieldSize(section, &field); ++i) {
    items.push_back(field.cpp_type() == FieldDescriptor::CPPTYPE_STRING
                        ? reflection.GetRepeatedString(section, &field, i)
                        : PrintNumber(reflection.GetRepeatedDouble(section, &field, i)));
  }
  return items;
}

bool IsListOfMaps(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field.is_repeated() &&
         !field.is_map();
}

std::vector<const Section*> MapsOf(const Section& section, const FieldDescriptor& field) {
  const Reflection& reflection = *section.GetReflection();
  std::vector<const Section*> maps;
  for (int i = 0; i < reflection.FieldSize(section, &field); ++i) {
    maps.push_back(&reflection.GetRepeatedMessage(section, &field, i));
  }
  return maps;
}

std::map<std::string, std::string> MapOf(const Section& section, const FieldDescriptor& field) {
  const auto& data = static_cast<const proto::DataOptions&>(section);
  const auto& entries = field.number() == proto::DataOptions::kFieldsFieldNumber
                            ? data.fields()
                            : data.template_arguments();
  return {entries.begin(), entries.end()};
}

// Returns a double-quoted YAML scalar.
std::string Quote(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

}  // namespace

std::string TypeOf(const FieldDescriptor& field) {
  if (const Key& key = OptionsOf(field); key.has_type()) {
    return key.type();
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return Describe(IntegersOf(field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return "integer of at least 0";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Describe(NumbersOf(field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return OneOf(NamesOf(*field.enum_type()));
    default:
      return "text";
  }
}

absl::Status ReadValue(const YAML::Node& node, Section& section, const FieldDescriptor& field) {
  const auto set = [&](auto setter, auto value) {
    if (value.ok()) {
      (section.GetReflection()->*setter)(&section, &field, *std::move(value));
    }
    return value.status();
  };
  if (field.is_repeated()) {
    return field.is_map() ? ReadMap(node, section, field) : ReadList(node, section, field);
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::SetInt64, OptionsOf(field).kind() == Key::BYTES
                                            ? ParseByteCount(node, IntegersOf(field))
                                            : ParseInteger(node, IntegersOf(field)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::SetUInt64, ParseSeed(node));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::SetDouble, ReadDouble(node, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::SetBool, ParseBoolean(node));
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(&Reflection::SetEnumValue, ReadEnum(node, *field.enum_type()));
    default:
      return set(&Reflection::SetString, ReadText(node, field));
  }
}

YAML::Node NodeOf(const Section& section, const FieldDescriptor& field) {
  if (field.is_map()) {
    return YAML::Node(MapOf(section, field));
  }
  if (IsListOfMaps(field)) {
    YAML::Node list(YAML::NodeType::Sequence);
    for (const Section* item : MapsOf(section, field)) {
      YAML::Node map(YAML::NodeType::Map);
      ForEachValue(*item, [&map](const std::string& name, const Section& of,
                                 const FieldDescriptor& key) { map[name] = NodeOf(of, key); });
      list.push_back(map);
    }
    return list;
  }
  return field.is_repeated() ? YAML::Node(ItemsOf(section, field))
                             : YAML::Node(TextOf(section, field));
}

std::string PrintValue(const Section& section, const FieldDescriptor& field) {
  const bool named = OptionsOf(field).names_size() > 0;  // names need no quotes
  const bool quoted = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && !named;
  const auto print = [&](const std::string& text) { return quoted ? Quote(text) : text; };
  std::vector<std::string> items;
  if (field.is_map()) {
    for (const auto& [name, text] : MapOf(section, field)) {
      items.push_back(fmt::format("{}: {}", name, Quote(text)));
    }
    return fmt::format("{{{}}}", absl::StrJoin(items, ", "));
  }
  if (IsListOfMaps(field)) {
    for (const Section* item : MapsOf(section, field)) {
      std::vector<std::string> keys;
      ForEachValue(*item,
                   [&keys](const std::string& name, const Section& of, const FieldDescriptor& key) {
                     keys.push_back(fmt::format("{}: {}", name, PrintValue(of, key)));
                   });
      items.push_back(fmt::format("{{{}}}", absl::StrJoin(keys, ", ")));
    }
    return fmt::format("[{}]", absl::StrJoin(items, ", "));
  }
  if (field.is_repeated()) {
    for (const std::string& text : ItemsOf(section, field)) {
      items.push_back(print(text));
    }
    return fmt::format("[{}]", absl::StrJoin(items, ", "));
  }
  return print(TextOf(section, field));
}

}  // namespace shoal::plan
