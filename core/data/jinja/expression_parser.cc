#include "core/data/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/data/jinja/characters.h"

namespace shoal::jinja {
namespace {

using Kind = Expression::Kind;

std::string_view NameOf(Token::Kind kind) {
  switch (kind) {
    case Token::Kind::kBlockEnd:
      return "%}";
    case Token::Kind::kPrintEnd:
      return "}}";
    case Token::Kind::kEnd:
      return "the end";
    default:
      return "text";
  }
}

}  // namespace

bool ExpressionParser::TakeName(std::string_view name) {
  const bool is = AtName(name);
  if (is) {
    Skip();
  }
  return is;
}

bool ExpressionParser::TakeOperator(std::string_view text) {
  const bool is = AtOperator(text);
  if (is) {
    Skip();
  }
  return is;
}

absl::Status ExpressionParser::Unexpected(std::string_view expected) const {
  const std::string_view text = current().text;
  const std::string found = OneLine(text.empty() ? NameOf(current().kind) : text, kMaxShown);
  return Error("expected {}, and there is '{}'", expected, found);
}

absl::Status ExpressionParser::Expect(Token::Kind kind, std::string_view what) {
  if (current().kind != kind) {
    return Unexpected(what);
  }
  Skip();
  return absl::OkStatus();
}

absl::Status ExpressionParser::ExpectOperator(std::string_view text) {
  return TakeOperator(text) ? absl::OkStatus() : Unexpected(fmt::format("'{}'", text));
}

absl::StatusOr<std::string> ExpressionParser::Identifier() {
  if (current().kind != Token::Kind::kName) {
    return Unexpected("a name");
  }
  std::string name = current().text;
  Skip();
  return name;
}

absl::Status ExpressionParser::Nest::Check() const {
  return parser_.nesting_ <= kMaxNesting
             ? absl::OkStatus()
             : parser_.Error("more than {} levels within each other", kMaxNesting);
}

ExpressionPtr ExpressionParser::Make(Kind kind, std::string name) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = current().line;
  made->name = std::move(name);
  return made;
}

absl::Status ExpressionParser::Adopt(Expression& into, ExpressionPtr operand) const {
  into.height = std::max(into.height, operand->height + 1);
  into.operands.push_back(std::move(operand));
  return into.height <= kMaxNesting
             ? absl::OkStatus()
             : Error("an expression of more than {} levels; set parts of it apart", kMaxNesting);
}

// NOLINTBEGIN(misc-no-recursion): bounded by Nest
absl::StatusOr<ExpressionPtr> ExpressionParser::LeftToRight(
    std::initializer_list<std::string_view> operators, Step operand) {
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  while ((current().kind == Token::Kind::kOperator || current().kind == Token::Kind::kName) &&
         std::find(operators.begin(), operators.end(), current().text) != operators.end()) {
    ExpressionPtr both = Make(Kind::kBinary, current().text);
    Skip();
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    SHOAL_RETURN_IF_ERROR(Adopt(*both, std::move(left)));
    SHOAL_RETURN_IF_ERROR(Adopt(*both, std::move(right)));
    left = std::move(both);
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Conditional() {
  const Nest nest(*this);
  SHOAL_RETURN_IF_ERROR(nest.Check());
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr value, Or());
  while (AtName("if")) {
    ExpressionPtr choice = Make(Kind::kConditional);
    Skip();
    SHOAL_RETURN_IF_ERROR(Adopt(*choice, std::move(value)));
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr condition, Or());
    SHOAL_RETURN_IF_ERROR(Adopt(*choice, std::move(condition)));
    if (TakeName("else")) {
      SHOAL_ASSIGN_OR_RETURN(ExpressionPtr other, Conditional());
      SHOAL_RETURN_IF_ERROR(Adopt(*choice, std::move(other)));
    }
    value = std::move(choice);
  }
  return value;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Not() {
  if (!AtName("not")) {
    return Compare();
  }
  const Nest nest(*this);
  SHOAL_RETURN_IF_ERROR(nest.Check());
  ExpressionPtr made = Make(Kind::kUnary, "not");
  Skip();
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr operand, Not());
  SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(operand)));
  return made;
}

std::string ExpressionParser::TakeComparison() {
  constexpr std::array<std::string_view, 6> kComparisons = {"==", "!=", "<", "<=", ">", ">="};
  if (current().kind == Token::Kind::kOperator &&
      std::find(kComparisons.begin(), kComparisons.end(), current().text) != kComparisons.end()) {
    std::string taken = current().text;
    Skip();
    return taken;
  }
  if (TakeName("in")) {
    return "in";
  }
  if (AtName("not") && ahead().Is(Token::Kind::kName, "in")) {
    Skip();
    Skip();
    return "not in";
  }
  return "";
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Compare() {
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr first, Sum());
  ExpressionPtr made = Make(Kind::kCompare);
  for (std::string comparison = TakeComparison(); !comparison.empty();
       comparison = TakeComparison()) {
    if (made->operands.empty()) {
      SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(first)));
    }
    made->names.push_back(std::move(comparison));
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr next, Sum());
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(next)));
  }
  return made->operands.empty() ? std::move(first) : std::move(made);
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Filtered() {
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr value, Unary());
  while (true) {
    if (AtOperator("|")) {
      Skip();
      SHOAL_ASSIGN_OR_RETURN(value, Filters(std::move(value)));
    } else if (AtName("is")) {
      SHOAL_ASSIGN_OR_RETURN(value, Test(std::move(value)));
    } else if (AtOperator("(")) {
      SHOAL_ASSIGN_OR_RETURN(value, Call(std::move(value)));
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Unary() {
  if (!AtOperator("-") && !AtOperator("+")) {
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr value, Primary());
    return Postfix(std::move(value));
  }
  const Nest nest(*this);
  SHOAL_RETURN_IF_ERROR(nest.Check());
  ExpressionPtr made = Make(Kind::kUnary, current().text);
  Skip();
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr operand, Unary());
  SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(operand)));
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Postfix(ExpressionPtr value) {
  while (true) {
    if (TakeOperator(".")) {
      SHOAL_ASSIGN_OR_RETURN(value, Attribute(std::move(value)));
    } else if (TakeOperator("[")) {
      SHOAL_ASSIGN_OR_RETURN(value, Subscript(std::move(value)));
    } else if (AtOperator("(")) {
      SHOAL_ASSIGN_OR_RETURN(value, Call(std::move(value)));
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Call(ExpressionPtr callee) {
  ExpressionPtr call = Make(Kind::kCall);
  SHOAL_RETURN_IF_ERROR(Adopt(*call, std::move(callee)));
  SHOAL_RETURN_IF_ERROR(Arguments(*call));
  return call;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Primary() {
  const Token& token = current();
  if (token.kind == Token::Kind::kName) {
    const std::string& name = token.text;
    ExpressionPtr made = Make(Kind::kConstant);
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      made->constant = Value(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      made->constant = Value(None{});
    } else {
      made->kind = Kind::kName;
      made->name = name;
    }
    Skip();
    return made;
  }
  if (token.kind == Token::Kind::kText) {
    ExpressionPtr made = Make(Kind::kConstant);
    std::string text;
    for (; current().kind == Token::Kind::kText; Skip()) {
      text += current().text;
    }
    made->constant = Value(Text(std::move(text)));
    return made;
  }
  if (token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat) {
    return Number(token.kind == Token::Kind::kInteger);
  }
  if (TakeOperator("(")) {
    if (TakeOperator(")")) {
      return Make(Kind::kTuple);
    }
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr made, Tuple(true));
    SHOAL_RETURN_IF_ERROR(ExpectOperator(")"));
    return made;
  }
  if (TakeOperator("[")) {
    return Items(Kind::kList, "]");
  }
  if (TakeOperator("{")) {
    return Items(Kind::kDict, "}");
  }
  return Unexpected("a value");
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Number(bool integer) {
  ExpressionPtr made = Make(Kind::kConstant);
  const std::string& text = current().text;
  int64_t whole = 0;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto result = integer ? std::from_chars(text.data(), end, whole)
                              : std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end) {
    return Error("the number {} is too large", text.substr(0, 40));
  }
  made->constant = integer ? Value(whole) : Value(number);
  Skip();
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Items(Kind kind, std::string_view close) {
  ExpressionPtr made = Make(kind);
  while (!AtOperator(close)) {
    if (!made->operands.empty()) {
      SHOAL_RETURN_IF_ERROR(ExpectOperator(","));
      if (AtOperator(close)) {
        break;
      }
    }
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr item, Parse());
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(item)));
    if (kind == Kind::kDict) {
      SHOAL_RETURN_IF_ERROR(ExpectOperator(":"));
      SHOAL_ASSIGN_OR_RETURN(ExpressionPtr value, Parse());
      SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(value)));
    }
  }
  Skip();
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Tuple(bool conditional) {
  const auto next = [&] { return conditional ? Conditional() : Or(); };
  const Nest nest(*this);
  SHOAL_RETURN_IF_ERROR(nest.Check());
  SHOAL_ASSIGN_OR_RETURN(ExpressionPtr first, next());
  if (!AtOperator(",")) {
    return first;
  }
  ExpressionPtr made = Make(Kind::kTuple);
  SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(first)));
  while (TakeOperator(",")) {
    if (AtOperator(")") || current().kind == Token::Kind::kBlockEnd ||
        current().kind == Token::Kind::kPrintEnd) {
      break;
    }
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr item, next());
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(item)));
  }
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Attribute(ExpressionPtr operand) {
  if (current().kind == Token::Kind::kInteger) {
    ExpressionPtr made = Make(Kind::kItem);
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr index, Number(true));
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(operand)));
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(index)));
    return made;
  }
  ExpressionPtr made = Make(Kind::kAttribute);
  SHOAL_ASSIGN_OR_RETURN(made->name, Identifier());
  SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(operand)));
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Subscript(ExpressionPtr operand) {
  ExpressionPtr made = Make(Kind::kItem);
  SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(operand)));
  while (true) {
    ExpressionPtr part = Make(Kind::kConstant);
    part->constant = Value(None{});
    if (!AtOperator(":") && !AtOperator("]")) {
      SHOAL_ASSIGN_OR_RETURN(part, Parse());
    } else if (made->kind == Kind::kItem && AtOperator("]")) {
      return Unexpected("an index");
    }
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(part)));
    if (made->operands.size() == 4 || !TakeOperator(":")) {
      break;
    }
    made->kind = Kind::kSlice;
  }
  SHOAL_RETURN_IF_ERROR(ExpectOperator("]"));
  while (made->kind == Kind::kSlice && made->operands.size() < 4) {
    ExpressionPtr none = Make(Kind::kConstant);
    none->constant = Value(None{});
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(none)));
  }
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Filters(ExpressionPtr value) {
  do {
    ExpressionPtr made = Make(Kind::kFilter);
    SHOAL_ASSIGN_OR_RETURN(made->name, Identifier());
    SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(value)));
    if (AtOperator("(")) {
      SHOAL_RETURN_IF_ERROR(Arguments(*made));
    }
    value = std::move(made);
  } while (TakeOperator("|"));
  return value;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Test(ExpressionPtr operand) {
  Skip();
  const bool negated = TakeName("not");
  ExpressionPtr made = Make(Kind::kTest);
  SHOAL_ASSIGN_OR_RETURN(made->name, Identifier());
  SHOAL_RETURN_IF_ERROR(Adopt(*made, std::move(operand)));
  constexpr std::array<std::string_view, 6> kEnds = {"else", "or", "and", "if", "is", "not"};
  const Token& token = current();
  const bool is_operand = token.kind == Token::Kind::kText || token.kind == Token::Kind::kInteger ||
                          token.kind == Token::Kind::kFloat || AtOperator("[") || AtOperator("{") ||
                          (token.kind == Token::Kind::kName && !AtName("in") &&
                           std::find(kEnds.begin(), kEnds.end(), token.text) == kEnds.end());
  if (AtOperator("(")) {
    SHOAL_RETURN_IF_ERROR(Arguments(*made));
  } else if (is_operand) {
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr value, Primary());
    SHOAL_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
    made->height = std::max(made->height, value->height + 1);
    made->arguments.emplace_back("", std::move(value));
  }
  if (!negated) {
    return made;
  }
  ExpressionPtr opposite = Make(Kind::kUnary, "not");
  SHOAL_RETURN_IF_ERROR(Adopt(*opposite, std::move(made)));
  return opposite;
}

absl::Status ExpressionParser::Arguments(Expression& call) {
  const Nest nest(*this);
  SHOAL_RETURN_IF_ERROR(nest.Check());
  SHOAL_RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) {
      SHOAL_RETURN_IF_ERROR(ExpectOperator(","));
      if (AtOperator(")")) {
        break;
      }
    }
    first = false;
    std::string name;
    if (current().kind == Token::Kind::kName && ahead().Is(Token::Kind::kOperator, "=")) {
      name = current().text;
      Skip();
      Skip();
    } else if (!call.arguments.empty() && !call.arguments.back().first.empty()) {
      return Error("an argument without a name follows one with a name");
    }
    SHOAL_ASSIGN_OR_RETURN(ExpressionPtr value, Parse());
    call.height = std::max(call.height, value->height + 1);
    call.arguments.emplace_back(std::move(name), std::move(value));
  }
  Skip();
  return call.height <= kMaxNesting
             ? absl::OkStatus()
             : Error("an expression of more than {} levels; set parts of it apart", kMaxNesting);
}
// NOLINTEND(misc-no-recursion)

}  // namespace shoal::jinja
