// What expressions of a template are worth: Python's values, as far as templates see them.
//
// Values are immutable but for namespaces, and bounded in depth, so that none holds itself and all
// recursion over them ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/text.h"
#include "nlohmann/json.hpp"

namespace shoal::jinja {

class Value;
struct List;
struct Dict;
struct Loop;
struct Method;
struct Macro;  // of the evaluator
using Namespace = std::map<std::string, Value, std::less<>>;

struct Undefined {
  explicit Undefined(std::string_view of = "");
  std::string name;  // what was not found, or the beginning of it
};
struct None {};
enum class Function { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

inline constexpr int kMaxValueDepth = 200;

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<const Loop>, std::shared_ptr<const Method>,
                               Namespace*, const Macro*, Function>;

  Value() = default;
  template <typename T>
  explicit Value(T of) : variant_(std::move(of)) {}
  explicit Value(Text text) : variant_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(const char*) = delete;

  // A value of data: all text within, keys too, is of `source`. `json` nests at most kMaxJsonDepth
  // deep (core/base/json/json.h).
  static Value FromJson(const nlohmann::ordered_json& json, int32_t source);

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&variant_);
  }
  const Text* text() const { return Pointer<Text>(); }
  const List* list() const { return Pointer<List>(); }
  const Dict* dict() const { return Pointer<Dict>(); }
  const Loop* loop() const { return Pointer<Loop>(); }
  const Method* method() const { return Pointer<Method>(); }
  bool undefined() const { return As<Undefined>() != nullptr; }
  bool none() const { return As<None>() != nullptr; }
  // Bools are numbers, as in Python.
  bool IsNumber() const { return As<double>() != nullptr || IsInteger(); }
  bool IsInteger() const { return As<int64_t>() != nullptr || As<bool>() != nullptr; }
  int64_t integer() const;  // IsInteger
  double number() const;    // IsNumber
  bool IsTrue() const;      // as an `if` takes it
  std::string_view TypeName() const;
  int depth() const;  // 0 of what holds no other

  const Variant& variant() const { return variant_; }

 private:
  template <typename T>
  const T* Pointer() const {
    const auto* pointer = As<std::shared_ptr<const T>>();
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Variant variant_;
};

// Also a tuple, which differs only in how it is printed.
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Text, Value>> items;
  int depth = 1;
};

struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
};

// A function of a value: 'text'.split.
struct Method {
  Value self;
  std::string name;
};

// Charges for a list or mapping of `size` elements that are there already.
absl::Status ChargeItems(size_t size, Budget& budget);
// InvalidArgument if they nest too deep.
absl::StatusOr<Value> MakeList(std::vector<Value> items, bool tuple = false);
absl::StatusOr<Value> MakeDict(std::vector<std::pair<Text, Value>> items);

}  // namespace shoal::jinja
