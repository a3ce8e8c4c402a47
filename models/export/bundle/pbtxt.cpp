// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/pbtxt.h"

#include <cctype>

#include "core/util/check.h"

namespace xylem::pbtxt {
namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  std::vector<Field> fields(char end, int depth = 0) {
    XY_CHECK(depth < 64, "line ", line_, ": messages are nested too deep");
    std::vector<Field> out;
    for (skip(); at_ < text_.size() && peek() != end; skip()) {
      Field f;
      f.line = line_;
      f.name = word();
      skip();
      bool colon = accept(':');
      skip();
      if (accept('[')) {  // a list of values or of messages
        for (skip(); !accept(']'); skip()) {
          Field item = f;
          value_of(item, depth);
          out.push_back(item);
          skip();
          if (!accept(',')) {
            XY_CHECK(peek() == ']', "line ", line_, ": expected ',' or ']' in the list '", f.name, "'");
          }
        }
      } else {
        XY_CHECK(colon || peek() == '{', "line ", line_, ": expected ':' or '{' behind '", f.name, "'");
        value_of(f, depth);
        out.push_back(f);
      }
      skip();
      accept(',') || accept(';');
    }
    XY_CHECK(end == 0 || at_ < text_.size(), "line ", line_, ": expected '", end, "' before the end of the file");
    return out;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#')
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      else if (!std::isspace(static_cast<unsigned char>(text_[at_])))
        return;
      else
        line_ += text_[at_++] == '\n';
    }
  }
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' || c == '+';
  }
  std::string word() {
    size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    XY_CHECK(at_ > begin, "line ", line_, ": expected a name or a value, not '",
             peek() ? std::string(1, peek()) : "the end", "'");
    return text_.substr(begin, at_ - begin);
  }
  void value_of(Field& f, int depth) {
    if (accept('{')) {
      f.message = true;
      f.fields = fields('}', depth + 1);
      accept('}');
      return;
    }
    if (peek() != '"' && peek() != '\'') {
      f.value = word();
      return;
    }
    char quote = text_[at_++];
    f.quoted = true;
    while (peek() != quote) {
      XY_CHECK(at_ < text_.size() && peek() != '\n', "line ", line_, ": the string has no end");
      if (peek() == '\\' && at_ + 1 < text_.size()) ++at_;
      f.value += text_[at_++];
    }
    ++at_;
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Field> parse(const std::string& text) { return Parser(text).fields('\0'); }

const Field* find(const std::vector<Field>& fields, const std::string& name) {
  for (const Field& f : fields)
    if (f.name == name) return &f;
  return nullptr;
}

std::vector<const Field*> find_all(const std::vector<Field>& fields, const std::string& name) {
  std::vector<const Field*> out;
  for (const Field& f : fields)
    if (f.name == name) out.push_back(&f);
  return out;
}

}  // namespace xylem::pbtxt
