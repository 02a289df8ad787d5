// A parsed template: statements, and the expressions within them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/data/jinja/value.h"

namespace shoal::jinja {

// Stands for the text of a tag's body in the filters of that tag; no template can write it.
inline constexpr std::string_view kBodyName = "(body)";
inline constexpr int kMaxNesting = 200;  // of statements, and of expressions, as they are written

struct Expression {
  enum class Kind {
    kConstant,     // constant
    kName,         // name
    kList,         // operands
    kTuple,        // operands
    kDict,         // operands: key, value, key, value, ...
    kAttribute,    // operands[0].name
    kItem,         // operands[0][operands[1]]
    kSlice,        // operands[0][operands[1]:operands[2]:operands[3]]; those not written are none
    kCall,         // operands[0](arguments)
    kFilter,       // operands[0] | name(arguments)
    kTest,         // operands[0] is name(arguments)
    kUnary,        // name operands[0]: not, -, +
    kBinary,       // operands[0] name operands[1]: and, or, +, -, *, /, //, %, **, ~
    kCompare,      // operands[0] names[0] operands[1] names[1] operands[2] ...
    kConditional,  // operands[0] if operands[1] else operands[2], which may be missing
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int height = 1;
  Value constant;
  std::string name;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Expression>> operands;
  // Of a call: first those without a name.
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> arguments;
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind {
    kData,        // data
    kPrint,       // value
    kIf,          // branches; the last may have no condition
    kFor,         // targets in value if condition: body, else other
    kSet,         // targets = value
    kSetBlock,    // targets = body, filtered
    kMacro,       // targets[0](parameters) = body
    kFilter,      // body, filtered
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;  // null: else
    Block body;
  };
  struct Target {
    std::string name;
    std::string attribute;  // of a namespace; empty: the name itself
  };
  struct Parameter {
    std::string name;
    ExpressionPtr value;  // null: none
  };
  Kind kind = Kind::kData;
  int line = 0;
  Value data;
  ExpressionPtr value;  // of kSetBlock (or null) and kFilter: filters over kBodyName
  ExpressionPtr condition;
  std::vector<Branch> branches;
  std::vector<Target> targets;
  std::vector<Parameter> parameters;
  Block body;
  Block other;
};

}  // namespace shoal::jinja
