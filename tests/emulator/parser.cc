/* PTX text to a module. */
#include "program.h"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulator {

std::string format(const char *pattern, ...) {
    char text[1024];
    va_list list;
    va_start(list, pattern);
    vsnprintf(text, sizeof text, pattern, list);
    va_end(list);
    return text;
}

std::vector<std::string> parts_of(const std::string &opcode) {
    std::vector<std::string> parts;
    for (size_t from = 0; from <= opcode.size();) {
        const size_t dot = std::min(opcode.find('.', from), opcode.size());
        parts.push_back(opcode.substr(from, dot - from));
        from = dot + 1;
    }
    return parts;
}

slot constant(function &f, uint64_t value, int width) {
    slot s;
    s.width = (int16_t)width;
    const size_t each = width == 64 ? 8 : 4, count = width == 1 ? 1 : 32;
    std::vector<unsigned char> bytes(each * count);
    if (width == 1) value = value ? 0xffffffffu : 0;
    if (width == 16) value &= 0xffff;
    for (size_t i = 0; i < count; i++) memcpy(&bytes[i * each], &value, each);
    const size_t at = f.constants.size();
    f.constants.insert(f.constants.end(), bytes.begin(), bytes.end());
    if (f.constants.size() % 8) f.constants.resize(at + 8);
    s.at = ~(int32_t)at;
    return s;
}

namespace {

constexpr size_t GAP = 128; /* bytes that no variable in shared memory has, behind each */

struct token {
    std::string text;
    int32_t line;         /* of the PTX */
    int32_t file, source; /* of the source, where -lineinfo says so: 0 = unknown */
};

[[noreturn]] void stop(int32_t line, const std::string &why) {
    fprintf(stderr, "emulator: PTX line %d: %s\n", line, why.c_str());
    exit(3);
}

bool is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.'; }

std::vector<token> tokens_of(const char *text, size_t bytes) {
    std::vector<token> found;
    int32_t line = 1, file = 0, source = 0;
    const char *at = text, *end = text + bytes;
    while (at < end && *at) {
        if (*at == '\n') line++, at++;
        else if (isspace((unsigned char)*at)) at++;
        else if (at[0] == '/' && at[1] == '/')
            while (at < end && *at != '\n') at++;
        else if (at[0] == '/' && at[1] == '*') {
            while (at + 1 < end && !(at[0] == '*' && at[1] == '/')) line += *at++ == '\n';
            at += 2;
        } else if (*at == '"') {
            const char *begin = at++;
            while (at < end && *at != '"') at++;
            found.push_back({std::string(begin, ++at), line, file, source});
        } else if (is_word(*at)) {
            const char *begin = at;
            while (at < end && (is_word(*at) || (at[0] == ':' && at[1] == ':'))) at += *at == ':' ? 2 : 1;
            const std::string word(begin, at);
            if (word == ".loc") {
                char *rest;
                file = (int32_t)strtol(at, &rest, 10);
                source = (int32_t)strtol(rest, &rest, 10);
                while (at < end && *at != '\n') at++;
            } else found.push_back({word, line, file, source});
        } else found.push_back({std::string(1, *at++), line, file, source});
    }
    found.push_back({"", line, 0, 0});
    return found;
}

int width_of(const std::string &type) {
    if (type == ".pred") return 1;
    const size_t digits = type.find_first_of("0123456789");
    const int bits = digits == std::string::npos ? 0 : atoi(type.c_str() + digits);
    if (type == ".f16x2" || type == ".bf16x2") return 32;
    return bits == 8 ? 16 : bits;
}
size_t bytes_of(const std::string &type) {
    const size_t digits = type.find_first_of("0123456789");
    return digits == std::string::npos ? 0 : (size_t)atoi(type.c_str() + digits) / 8;
}

struct parser {
    std::vector<token> tokens;
    size_t at = 0;
    module *into;
    function *f = nullptr;

    struct scope {
        std::unordered_map<std::string, int> prefixes; /* %r -> 32 */
        std::unordered_map<std::string, slot> registers;
        std::unordered_map<std::string, int32_t> labels, parameters; /* parameters: offsets in the area */
        std::unordered_map<std::string, size_t> locals;
        std::vector<std::pair<int32_t, std::string>> branches; /* whose labels are not known yet */
    };
    std::vector<scope> scopes;
    std::unordered_map<std::string, size_t> own; /* the function's parameters and results: index */
    std::unordered_map<std::string, bool> own_is_result;

    const std::string &peek(size_t ahead = 0) const { return tokens[at + ahead].text; }
    int32_t line() const { return tokens[at].line; }
    std::string next() { return tokens[at++].text; }
    bool accept(const char *text) { return peek() == text ? (at++, true) : false; }
    void expect(const char *text) {
        if (!accept(text)) stop(line(), format("\"%s\" expected, \"%s\" found", text, peek().c_str()));
    }
    int64_t integer() {
        const bool negative = accept("-");
        const std::string word = next();
        char *end;
        const uint64_t x = strtoull(word.c_str(), &end, 0);
        if (*end && *end != 'U') stop(line(), "a number expected, \"" + word + "\" found");
        return negative ? -(int64_t)x : (int64_t)x;
    }

    /* .align 8 .b8 name[16] or .b64 name, after its state space: bytes and name. */
    struct declared {
        std::string name;
        size_t bytes, element, align;
        bool open;
    };
    declared declaration() {
        declared d = {"", 0, 0, 0, false};
        if (accept(".align")) d.align = (size_t)integer();
        if (peek() == ".v2" || peek() == ".v4") next();
        const std::string type = next();
        d.bytes = d.element = bytes_of(type);
        if (!d.align) d.align = d.bytes;
        if (accept(".ptr")) {
            if (peek()[0] == '.' && peek() != ".align") next();
            if (accept(".align")) integer();
        }
        d.name = next();
        while (accept("[")) {
            if (accept("]")) {
                d.open = true;
                continue;
            }
            d.bytes *= (size_t)integer();
            expect("]");
        }
        return d;
    }

    void module_variable(const std::string &which) {
        const declared d = declaration();
        if (which == ".shared") {
            into->shared_bytes = (into->shared_bytes + d.align - 1) / d.align * d.align;
            if (!d.open) {
                into->shared[d.name] = STATIC_BEGIN + into->shared_bytes;
                into->shared_sizes[d.name] = d.bytes;
                into->shared_bytes += d.bytes + GAP;
            } else into->shared[d.name] = SIZE_MAX; /* dynamic */
        } else {
            variable_of_module v = {(unsigned char *)aligned_alloc(256, (d.bytes + 256) / 256 * 256), d.bytes};
            memset(v.memory, 0, d.bytes);
            if (accept("=")) {
                size_t at_byte = 0;
                const bool is_list = accept("{");
                while (!is_list || !accept("}")) {
                    const int64_t x = integer();
                    if (at_byte + d.element <= v.bytes) memcpy(v.memory + at_byte, &x, d.element);
                    at_byte += d.element;
                    accept(",");
                    if (!is_list) break;
                }
            }
            add_memory(v.memory, d.bytes);
            into->variables[d.name] = v;
        }
        while (peek() != ";") at++;
        expect(";");
    }

    std::vector<declared> parameter_list() {
        std::vector<declared> list;
        expect("(");
        while (!accept(")")) {
            if (!accept(".param")) stop(line(), "a parameter expected, \"" + peek() + "\" found");
            list.push_back(declaration());
            accept(",");
        }
        return list;
    }

    void function_of(bool is_entry) {
        std::vector<declared> results, parameters;
        if (peek() == "(") results = parameter_list();
        const std::string name = next();
        if (peek() == "(") parameters = parameter_list();
        auto &place_of = into->functions[name];
        if (!place_of) place_of = std::make_unique<function>();
        f = place_of.get();
        f->name = name;
        f->is_entry = is_entry;
        while (peek() != "{" && peek() != ";") {
            const std::string word = next();
            if (word == ".maxntid" || word == ".reqntid") {
                int64_t n = integer();
                while (accept(",")) n *= integer();
                f->most_threads = (uint32_t)n;
            }
        }
        if (accept(";")) return;
        f->has_body = true;
        f->area_bytes = 0, f->parameters.clear(), f->results.clear(); /* a declaration may have come before */
        own.clear(), own_is_result.clear();
        size_t offset = 0;
        for (const declared &p : parameters) {
            own[p.name] = f->parameters.size();
            own_is_result[p.name] = false;
            if (is_entry) {
                offset = (offset + p.align - 1) / p.align * p.align;
                f->parameters.push_back({offset, p.bytes});
                offset += p.bytes;
            } else f->parameters.push_back({area(p.bytes, p.align), p.bytes});
        }
        for (const declared &p : results) {
            own[p.name] = f->results.size();
            own_is_result[p.name] = true;
            f->results.push_back({area(p.bytes, p.align), p.bytes});
        }
        scopes.clear();
        expect("{");
        scopes.emplace_back();
        while (!scopes.empty()) statement();
        area(0, 16); /* so that every lane's is aligned */
        instruction end;
        end.how = is_entry ? flow::exit : flow::leave;
        end.text = "ret";
        f->code.push_back(end);
    }
    size_t area(size_t bytes, size_t align) {
        f->area_bytes = (f->area_bytes + align - 1) / align * align;
        const size_t found = f->area_bytes;
        f->area_bytes += bytes;
        return found;
    }

    void open() { scopes.emplace_back(); }
    void close() {
        scope s = std::move(scopes.back());
        scopes.pop_back();
        for (const auto &branch : s.branches) {
            const auto label = s.labels.find(branch.second);
            if (label != s.labels.end()) f->code[(size_t)branch.first].target = label->second;
            else if (!scopes.empty()) scopes.back().branches.push_back(branch);
            else stop(line(), "no label " + branch.second);
        }
    }

    slot new_register(int width) {
        slot s;
        const size_t bytes = width == 1 ? 8 : width == 64 ? 256 : 128;
        s.at = (int32_t)f->register_bytes;
        s.width = (int16_t)width;
        f->register_bytes += bytes;
        return s;
    }
    bool find_register(const std::string &name, slot *found) {
        std::string prefix = name;
        while (!prefix.empty() && isdigit((unsigned char)prefix.back())) prefix.pop_back();
        for (size_t i = scopes.size(); i-- > 0;) {
            const auto known = scopes[i].registers.find(name);
            if (known != scopes[i].registers.end()) return *found = known->second, true;
            const auto family = prefix == name ? scopes[i].prefixes.end() : scopes[i].prefixes.find(prefix);
            if (family != scopes[i].prefixes.end()) {
                *found = scopes[i].registers[name] = new_register(family->second);
                return true;
            }
        }
        return false;
    }

    void statement() {
        if (accept("{")) return open();
        if (accept("}")) return close();
        const std::string &word = peek();
        if (word == ".reg") return registers();
        if (word == ".local" || word == ".shared" || word == ".param") {
            const std::string which = next();
            const declared d = declaration();
            expect(";");
            if (which == ".param") scopes.back().parameters[d.name] = (int32_t)area(d.bytes, d.align);
            else if (which == ".local")
                scopes.back().locals[d.name] = area(d.bytes, d.align), f->local_bytes += d.bytes;
            else {
                into->shared_bytes = (into->shared_bytes + d.align - 1) / d.align * d.align;
                into->shared[d.name] = STATIC_BEGIN + into->shared_bytes; /* its name has the function in it */
                into->shared_sizes[d.name] = d.bytes;
                into->shared_bytes += d.bytes + GAP;
            }
            return;
        }
        if (word == ".pragma") {
            while (next() != ";") {}
            return;
        }
        if (peek(1) == ":") {
            scopes.back().labels[next()] = (int32_t)f->code.size();
            expect(":");
            return;
        }
        one_instruction();
    }
    void registers() {
        expect(".reg");
        const int width = width_of(next());
        do {
            const std::string name = next();
            if (accept("<")) {
                integer();
                expect(">");
                scopes.back().prefixes[name] = width;
            } else scopes.back().registers[name] = new_register(width);
        } while (accept(","));
        expect(";");
    }

    /* The width that an operand which is a number has is that of the opcode's type. */
    int number_width = 32;

    operand parse_operand() {
        operand o;
        if (accept("{")) {
            o.kind = operand::is_list;
            while (!accept("}")) {
                o.items.push_back(parse_operand());
                accept(",");
            }
            return o;
        }
        if (accept("(")) {
            o.kind = operand::is_list;
            while (!accept(")")) {
                operand item;
                item.kind = operand::is_address;
                item.name = next();
                item.parameter = parameter_named(item.name);
                o.items.push_back(item);
                accept(",");
            }
            return o;
        }
        if (accept("[")) {
            o.kind = operand::is_address;
            base_of(o);
            if (accept("+")) o.offset += integer();
            else if (peek() == "-") o.offset += integer();
            while (accept(",")) {
                const operand coordinates = parse_operand();
                o.items.insert(o.items.end(), coordinates.items.begin(), coordinates.items.end());
            }
            expect("]");
            return o;
        }
        if (accept("!")) {
            o = parse_operand();
            o.value.negated = true;
            return o;
        }
        o.value = value();
        if (accept("|")) o.second = value();
        return o;
    }
    int32_t parameter_named(const std::string &name) const {
        for (size_t i = scopes.size(); i-- > 0;) {
            const auto p = scopes[i].parameters.find(name);
            if (p != scopes[i].parameters.end()) return p->second;
        }
        return -1;
    }
    void base_of(operand &o) {
        const std::string &name = peek();
        const int32_t parameter = parameter_named(name);
        if (parameter >= 0) {
            o.parameter = parameter;
            o.name = next();
        } else if (own.count(name)) {
            o.own = true;
            const size_t i = own[name];
            const place &p = own_is_result[name] ? f->results[i] : f->parameters[i];
            o.offset = (int64_t)p.offset;
            if (!f->is_entry) o.parameter = (int32_t)p.offset, o.offset = 0, o.own = false;
            next();
        } else {
            number_width = 64;
            o.value = value();
        }
    }
    slot value() {
        const std::string word = peek();
        slot s;
        if (word == "_") return next(), s;
        if (find_register(word, &s)) return next(), s;
        if (word[0] == '%') return special(next());
        if (word == "-" || isdigit((unsigned char)word[0])) return number();
        if (word == "WARP_SZ") return next(), constant(*f, 32, number_width);
        return symbol(next());
    }
    slot number() {
        const std::string word = peek();
        if (word.size() > 2 && word[0] == '0' && (word[1] == 'f' || word[1] == 'F'))
            return next(), constant(*f, strtoull(word.c_str() + 2, nullptr, 16), 32);
        if (word.size() > 2 && word[0] == '0' && (word[1] == 'd' || word[1] == 'D'))
            return next(), constant(*f, strtoull(word.c_str() + 2, nullptr, 16), 64);
        if (word.find('.') != std::string::npos) { /* 1.0, as createpolicy has it */
            const float x = strtof(next().c_str(), nullptr);
            uint32_t bits;
            memcpy(&bits, &x, 4);
            return constant(*f, bits, 32);
        }
        return constant(*f, (uint64_t)integer(), number_width);
    }
    /* The address of a variable, as a constant; of local memory and of parameters it differs by lane or launch, so
     * that it is a register which an instruction before this one sets. */
    slot symbol(const std::string &name) {
        const auto shared = into->shared.find(name);
        int64_t more = 0;
        if (accept("+")) more = integer();
        if (shared != into->shared.end()) {
            f->shared.push_back(name);
            if (shared->second != SIZE_MAX) return constant(*f, shared->second + (uint64_t)more, number_width);
            return address("dynamic", more, number_width);
        }
        const auto variable = into->variables.find(name);
        if (variable != into->variables.end())
            return constant(*f, (uint64_t)(uintptr_t)variable->second.memory + (uint64_t)more, 64);
        for (size_t i = scopes.size(); i-- > 0;) {
            const auto local = scopes[i].locals.find(name);
            if (local != scopes[i].locals.end()) return address("local", (int64_t)local->second + more, 64);
        }
        const int32_t parameter = parameter_named(name);
        if (parameter >= 0) return address("local", parameter + more, 64);
        if (own.count(name)) {
            const size_t i = own[name];
            const place &p = own_is_result[name] ? f->results[i] : f->parameters[i];
            return address(f->is_entry ? "param" : "local", (int64_t)p.offset + more, 64);
        }
        stop(line(), "unknown name " + name);
    }
    slot address(const char *kind, int64_t offset, int width) {
        instruction i;
        i.text = std::string("address.") + kind;
        i.number = offset;
        i.d = new_register(width);
        i.line = line();
        if (!find_memory(i)) stop(line(), i.text);
        f->code.push_back(i);
        return i.d;
    }
    slot special(const std::string &name) {
        instruction i;
        i.text = "special" + name;
        i.d = new_register(name.find("globaltimer") != std::string::npos || name == "%clock64" ? 64 : 32);
        i.line = line();
        if (!find_memory(i)) stop(line(), "unknown register " + name);
        f->code.push_back(i);
        return i.d;
    }

    static int type_width(const std::string &opcode) {
        if (starts(opcode, "wgmma")) return 32; /* its types are those of matrices */
        static const char *wide[] = {".b64", ".u64", ".s64", ".f64"},
                          *half[] = {".b16", ".u16", ".s16", ".f16", ".bf16"};
        if (starts(opcode, "cvt") || starts(opcode, "mul.wide") || starts(opcode, "mad.wide")) {
            const std::string last = opcode.substr(opcode.rfind('.'));
            return last.find("64") != std::string::npos ? 64 : last.find("16") != std::string::npos ? 16 : 32;
        }
        if (opcode.find(".pred") != std::string::npos && opcode.find("setp") == std::string::npos
            && starts(opcode, "mov"))
            return 1;
        for (const char *w : wide)
            if (opcode.find(w) != std::string::npos) return 64;
        for (const char *h : half) {
            const size_t found = opcode.find(h);
            if (found != std::string::npos && opcode.find("x2", found) == std::string::npos) return 16;
        }
        return 32;
    }

    /* The width of operand n where it is a number: that of the opcode's type, but for counts of bits and the like. */
    static int width_of_number(const std::string &opcode, int n, int of_type) {
        if (starts(opcode, "mad.wide")) return n == 3 ? 64 : of_type;
        if (starts(opcode, "tensormap.replace")) {
            const int last = contains(opcode, "address") ? 1 : 2;
            return n == last && contains(opcode, ".b64") ? 64 : 32;
        }
        const bool counts = starts(opcode, "shl") || starts(opcode, "shr") || starts(opcode, "bfe") ? n >= 2
                            : starts(opcode, "bfi")                                                 ? n >= 3
                            : starts(opcode, "match")                                               ? n == 2
                                                      : starts(opcode, "mbarrier") || starts(opcode, "cp.");
        return counts ? 32 : of_type;
    }

    void one_instruction() {
        instruction i;
        i.line = line();
        i.file = tokens[at].file, i.source = tokens[at].source;
        if (accept("@")) {
            const bool negated = accept("!");
            const std::string name = next();
            if (!find_register(name, &i.guard)) stop(line(), "unknown predicate " + name);
            i.guard.negated = negated;
        }
        i.text = next();
        const int width = type_width(i.text);
        if (i.text == "bra" || i.text == "bra.uni") {
            i.how = flow::branch;
            scopes.back().branches.push_back({(int32_t)f->code.size(), next()});
            expect(";");
            f->code.push_back(i);
            return;
        }
        if (starts(i.text, "call")) return call(i);
        int count = 0;
        while (peek() != ";") {
            number_width = width_of_number(i.text, count, width);
            i.operands.push_back(parse_operand());
            count++;
            if (!accept(",") && peek() != ";")
                stop(line(), "\",\" or \";\" expected after an operand of " + i.text + ", \"" + peek() + "\" found");
        }
        expect(";");
        if (i.text == "ret" || i.text == "ret.uni" || i.text == "exit")
            i.how = f->is_entry || i.text == "exit" ? flow::exit : flow::leave;
        else {
            const auto of = [&](size_t n) { return n < i.operands.size() ? i.operands[n].value : slot(); };
            i.d = of(0), i.a = of(1), i.b = of(2), i.c = of(3);
            if (!find_arithmetic(i) && !find_memory(i) && !find_copies(i) && !find_matrices(i))
                stop(i.line, "unknown instruction " + i.text);
        }
        f->code.push_back(i);
    }
    /* call.uni (results), name, (parameters); either list may be missing. */
    void call(instruction &i) {
        i.how = flow::call;
        operand results, name, parameters;
        results.kind = parameters.kind = operand::is_list;
        if (peek() == "(") {
            results = parse_operand();
            expect(",");
        }
        const std::string callee = next();
        auto &f2 = into->functions[callee];
        if (!f2) f2 = std::make_unique<function>(), f2->name = callee;
        i.callee = f2.get();
        if (accept(",")) parameters = parse_operand();
        expect(";");
        i.operands = {results, parameters};
        f->code.push_back(i);
    }

    void everything() {
        while (!peek().empty()) {
            const std::string word = next();
            if (word == ".version" || word == ".address_size") next();
            else if (word == ".target") {
                next();
                while (accept(",")) next();
            } else if (word == ".entry") function_of(true);
            else if (word == ".func") function_of(false);
            else if (word == ".global" || word == ".const" || word == ".shared") module_variable(word);
            else if (word == ".section") {
                while (next() != "}") {}
            } else if (word == ".file") {
                const int64_t number = integer();
                const std::string path = next();
                into->files[(int32_t)number] = path.substr(1, path.size() - 2);
                while (accept(",")) next();
            } else if (word != ".visible" && word != ".extern" && word != ".weak" && word != ".common" && word != ";")
                stop(line(), "\"" + word + "\" is not understood");
        }
    }
};

} // namespace

module *load(const char *ptx, size_t bytes) {
    module *m = new module;
    parser p;
    p.into = m;
    p.tokens = tokens_of(ptx, bytes);
    p.everything();
    return m;
}

} // namespace emulator
