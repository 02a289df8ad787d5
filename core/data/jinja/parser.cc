#include "core/data/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>

#include "core/base/status.h"
#include "core/data/jinja/characters.h"
#include "core/data/jinja/expression_parser.h"

namespace shoal::jinja {
namespace {

class Parser {
 public:
  Parser(std::vector<Token> tokens, std::string_view name) : tokens_(std::move(tokens), name) {}

  absl::StatusOr<ParsedTemplate> Run() {
    SHOAL_RETURN_IF_ERROR(Until({}, parsed_.body));
    return std::move(parsed_);
  }

 private:
  std::unique_ptr<Statement> Make(Statement::Kind kind) const {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = tokens_.current().line;
    return made;
  }

  // What filters of a tag's body are over.
  static ExpressionPtr BodyName() {
    auto made = std::make_unique<Expression>();
    made->kind = Expression::Kind::kName;
    made->name = kBodyName;
    return made;
  }

  absl::Status EndTag() { return tokens_.Expect(Token::Kind::kBlockEnd, "%}"); }

  // NOLINTBEGIN(misc-no-recursion): bounded by Nest
  // Reads statements up to a tag with one of `ends`, whose name is the current token then; to the
  // end of the template if there are none.
  absl::Status Until(std::initializer_list<std::string_view> ends, Block& body) {
    const ExpressionParser::Nest nest(tokens_);
    SHOAL_RETURN_IF_ERROR(nest.Check());
    while (true) {
      const Token& token = tokens_.current();
      if (token.kind == Token::Kind::kEnd) {
        return ends.size() == 0 ? absl::OkStatus()
                                : tokens_.Error("{{% {} %}} is missing", *(ends.end() - 1));
      }
      if (token.kind == Token::Kind::kData) {
        body.push_back(Make(Statement::Kind::kData));
        body.back()->data = Value(Text(token.text));
        tokens_.Skip();
      } else if (token.kind == Token::Kind::kPrint) {
        body.push_back(Make(Statement::Kind::kPrint));
        tokens_.Skip();
        SHOAL_ASSIGN_OR_RETURN(body.back()->value, tokens_.Tuple(true));
        SHOAL_RETURN_IF_ERROR(tokens_.Expect(Token::Kind::kPrintEnd, "}}"));
      } else {
        tokens_.Skip();  // {%
        if (std::find(ends.begin(), ends.end(), tokens_.current().text) != ends.end()) {
          return absl::OkStatus();
        }
        SHOAL_RETURN_IF_ERROR(Tag(body));
      }
    }
  }

  // The body of a tag that `end` closes.
  absl::Status Body(std::string_view end, Block& body) {
    SHOAL_RETURN_IF_ERROR(EndTag());
    SHOAL_RETURN_IF_ERROR(Until({end}, body));
    tokens_.Skip();
    return EndTag();
  }

  absl::Status Tag(Block& body) {
    if (tokens_.TakeName("if")) {
      return If(body);
    }
    if (tokens_.TakeName("for")) {
      return For(body);
    }
    if (tokens_.TakeName("set")) {
      return Set(body);
    }
    if (tokens_.TakeName("macro")) {
      return Macro(body);
    }
    if (tokens_.TakeName("filter")) {
      body.push_back(Make(Statement::Kind::kFilter));
      SHOAL_ASSIGN_OR_RETURN(body.back()->value, tokens_.Filters(BodyName()));
      return Body("endfilter", body.back()->body);
    }
    if (tokens_.TakeName("generation")) {
      parsed_.has_generation = true;
      body.push_back(Make(Statement::Kind::kGeneration));
      return Body("endgeneration", body.back()->body);
    }
    for (const auto& [name, kind] : {std::pair("break", Statement::Kind::kBreak),
                                     std::pair("continue", Statement::Kind::kContinue)}) {
      if (tokens_.TakeName(name)) {
        body.push_back(Make(kind));
        return loops_ > 0 ? EndTag() : tokens_.Error("{} stands outside of a loop", name);
      }
    }
    return tokens_.Error(
        "tag '{}' is not supported; for, if, set, macro, filter, generation, raw, "
        "break and continue are",
        OneLine(tokens_.current().text, kMaxShown));
  }

  absl::Status If(Block& body) {
    body.push_back(Make(Statement::Kind::kIf));
    Statement& made = *body.back();
    bool more = true;
    while (more) {
      Statement::Branch& branch = made.branches.emplace_back();
      SHOAL_ASSIGN_OR_RETURN(branch.condition, tokens_.Parse());
      SHOAL_RETURN_IF_ERROR(EndTag());
      SHOAL_RETURN_IF_ERROR(Until({"elif", "else", "endif"}, branch.body));
      more = tokens_.TakeName("elif");
    }
    if (tokens_.TakeName("else")) {
      return Body("endif", made.branches.emplace_back().body);
    }
    tokens_.Skip();
    return EndTag();
  }

  absl::Status For(Block& body) {
    body.push_back(Make(Statement::Kind::kFor));
    Statement& made = *body.back();
    const bool brackets = tokens_.TakeOperator("(");
    do {
      SHOAL_ASSIGN_OR_RETURN(made.targets.emplace_back().name, tokens_.Identifier());
    } while (tokens_.TakeOperator(","));
    if (brackets) {
      SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    }
    if (!tokens_.TakeName("in")) {
      return tokens_.Unexpected("'in'");
    }
    SHOAL_ASSIGN_OR_RETURN(made.value, tokens_.Tuple(false));
    if (tokens_.TakeName("if")) {
      SHOAL_ASSIGN_OR_RETURN(made.condition, tokens_.Parse());
    }
    if (tokens_.AtName("recursive")) {
      return tokens_.Error("a recursive loop is not supported; a macro that calls itself is");
    }
    SHOAL_RETURN_IF_ERROR(EndTag());
    ++loops_;
    SHOAL_RETURN_IF_ERROR(Until({"else", "endfor"}, made.body));
    --loops_;
    if (tokens_.TakeName("else")) {
      return Body("endfor", made.other);
    }
    tokens_.Skip();
    return EndTag();
  }

  absl::Status Set(Block& body) {
    auto made = Make(Statement::Kind::kSet);
    do {
      Statement::Target& target = made->targets.emplace_back();
      SHOAL_ASSIGN_OR_RETURN(target.name, tokens_.Identifier());
      if (tokens_.TakeOperator(".")) {
        SHOAL_ASSIGN_OR_RETURN(target.attribute, tokens_.Identifier());
      }
    } while (tokens_.TakeOperator(","));
    Statement& set = *made;
    body.push_back(std::move(made));
    if (tokens_.TakeOperator("=")) {
      SHOAL_ASSIGN_OR_RETURN(set.value, tokens_.Tuple(true));
      return EndTag();
    }
    set.kind = Statement::Kind::kSetBlock;
    if (tokens_.TakeOperator("|")) {
      SHOAL_ASSIGN_OR_RETURN(set.value, tokens_.Filters(BodyName()));
    }
    return Body("endset", set.body);
  }

  absl::Status Macro(Block& body) {
    body.push_back(Make(Statement::Kind::kMacro));
    Statement& made = *body.back();
    SHOAL_ASSIGN_OR_RETURN(made.targets.emplace_back().name, tokens_.Identifier());
    SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.TakeOperator(")")) {
      if (!made.parameters.empty()) {
        SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      }
      Statement::Parameter& parameter = made.parameters.emplace_back();
      SHOAL_ASSIGN_OR_RETURN(parameter.name, tokens_.Identifier());
      if (tokens_.TakeOperator("=")) {
        SHOAL_ASSIGN_OR_RETURN(parameter.value, tokens_.Parse());
      }
    }
    const int loops = std::exchange(loops_, 0);
    SHOAL_RETURN_IF_ERROR(Body("endmacro", made.body));
    loops_ = loops;
    return absl::OkStatus();
  }
  // NOLINTEND(misc-no-recursion)

  ExpressionParser tokens_;
  ParsedTemplate parsed_;
  int loops_ = 0;  // that the current tag is in
};

}  // namespace

absl::StatusOr<ParsedTemplate> ParseTemplate(std::string_view source, std::string_view name) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source, name));
  return Parser(std::move(tokens), name).Run();
}

}  // namespace shoal::jinja
