package strictyaml

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"
)

type inner struct {
	Text string        `yaml:"text" default:"plain"`
	Wait time.Duration `yaml:"wait" default:"3s" min:"1s" max:"1h"`
}

type sample struct {
	Text    string            `yaml:"text"`
	Must    string            `yaml:"must" required:"true"`
	Enum    string            `yaml:"enum" default:"a" enum:"a,b"`
	Flag    bool              `yaml:"flag" default:"true"`
	N       int               `yaml:"n" default:"7" min:"1" max:"9"`
	Opt     *int              `yaml:"opt" min:"1"`
	Size    int64             `yaml:"size" form:"size" default:"2KiB"`
	Ratio   float64           `yaml:"ratio" default:"0.5" min:"0" max:"1"`
	Hash    [32]byte          `yaml:"hash" form:"hex" secret:"true"`
	Keys    [][]byte          `yaml:"keys" form:"base64" secret:"true"`
	Re      *regexp.Regexp    `yaml:"re"`
	Raw     *yaml.Node        `yaml:"raw"`
	In      inner             `yaml:"in"`
	Maybe   *inner            `yaml:"maybe"`
	List    []inner           `yaml:"list"`
	Words   []string          `yaml:"words" enum:"x,y"`
	Map     map[string]string `yaml:"map"`
	A       int               `yaml:"deep.a"`
	B       int               `yaml:"deep.b.c"`
	Ignored string            `yaml:"-"`
}

var vars = &Variables{
	LookupEnv: func(n string) (string, bool) {
		switch n {
		case "NUMBER":
			return "8", true
		case "TRICK":
			return "a, b: [c]\n# d", true
		case "EMPTY":
			return "", true
		}
		return "", false
	},
	ReadFile: func(path string) ([]byte, error) {
		if path == "/secret" {
			return []byte("hunter2\r\n"), nil
		}
		return nil, errors.New("no such file")
	},
}

func decode(text string, mode Mode) (*sample, *Document) {
	d := Parse("f.yaml", []byte(text), vars)
	s := &sample{}
	Decode(d, s, mode)
	return s, d
}

func TestDecode(t *testing.T) {
	t.Run("absent keys have their defaults, in lists and behind pointers too", func(t *testing.T) {
		s, d := decode("must: x\nlist: [{}, {wait: 5s}]\nmaybe: {}", Strict)
		if err := d.Problems().Err(); err != nil {
			t.Fatal(err)
		}
		plain := inner{"plain", 3 * time.Second}
		want := &sample{Must: "x", Enum: "a", Flag: true, N: 7, Size: 2048, Ratio: .5, In: plain, Maybe: &plain, List: []inner{plain, {"plain", 5 * time.Second}}}
		if diff := cmp.Diff(want, s); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("every form is read", func(t *testing.T) {
		s, d := decode(`must: x
text: "12"
flag: false
n: 9
opt: 4
size: 3GiB
ratio: 1
hash: `+strings.Repeat("11", 32)+`
keys: [AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=]
re: ^a+$
raw: {any: [thing]}
words: [x, y]
map: {k: v}
deep: {a: 1, b: {c: 2}}
`, Strict)
		if err := d.Problems().Err(); err != nil {
			t.Fatal(err)
		}
		if s.Text != "12" || s.Flag || s.N != 9 || *s.Opt != 4 || s.Size != 3<<30 || s.Ratio != 1 || s.Hash[31] != 0x11 || len(s.Keys[0]) != 32 ||
			!s.Re.MatchString("aa") || s.Raw.Kind != yaml.MappingNode || s.Map["k"] != "v" || s.A != 1 || s.B != 2 {
			t.Errorf("%+v", s)
		}
		if d.Line("deep.b.c") != 14 || d.Line("list[3].wait") != 0 || !d.Has("deep.a") || d.Has("in") {
			t.Error("the lines are wrong")
		}
	})
	t.Run("a variable is a value and never structure", func(t *testing.T) {
		s, d := decode("must: ${TRICK}\nn: ${NUMBER}\ntext: ${NUMBER}\nwords: [${NOPE:-x}]\nmap: {a: ${file:/secret}, b: \"<${EMPTY}>\"}\n", Strict)
		if err := d.Problems().Err(); err != nil {
			t.Fatal(err)
		}
		if s.Must != "a, b: [c]\n# d" || s.N != 8 || s.Text != "8" || s.Words[0] != "x" || s.Map["a"] != "hunter2" || s.Map["b"] != "<>" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("unknown keys are problems, or warnings in Lenient mode", func(t *testing.T) {
		_, d := decode("must: x\nnope: 1", Strict)
		if ps := d.Problems(); len(ps) != 1 || ps[0].Line != 2 || ps[0].Key != "nope" {
			t.Error(ps)
		}
		_, d = decode("must: x\nnope: 1", Lenient)
		if len(d.Problems()) != 0 || len(d.Warnings()) != 1 {
			t.Error(d.Problems(), d.Warnings())
		}
	})
	t.Run("a key without a value is absent, and a problem in Exact mode", func(t *testing.T) {
		s, d := decode("must: x\nn:\nopt: ~", Strict)
		if len(d.Problems()) != 0 || s.N != 7 || s.Opt != nil {
			t.Error(d.Problems(), s.N)
		}
		_, d = decode("must: x\nn:\nopt: ~", Exact)
		if len(d.Problems()) != 2 {
			t.Error(d.Problems())
		}
	})
}

func TestProblems(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"a missing key", "text: x", "f.yaml:1: must: this key is required"},
		{"an empty text where one is required", "must: ''", "must: it must not be empty"},
		{"a number for a text", "must: 1", "must: a text is wanted, this is a number; put it in quotes"},
		{"true for a text", "must: yes\ntext: true", "text: a text is wanted, this is true or false"},
		{"a date for a text", "must: 2024-01-01", "must: a text is wanted, this is a date"},
		{"a word for true", "must: x\nflag: 'true'", "flag: true or false is wanted, this is a text"},
		{"too small", "must: x\nn: 0", `n: "0": at least 1 is wanted`},
		{"too large", "must: x\nn: 10", `n: "10": at most 9 is wanted`},
		{"a fraction", "must: x\nn: 1.5", "n: a whole number is wanted, this is a number"},
		{"an octal", "must: x\nn: 0o7", "in plain digits"},
		{"a duration too short", "must: x\nin: {wait: 1ms}", `in.wait: "1ms": at least 1s is wanted`},
		{"a size too large", "must: x\nsize: 9999999TiB", "the size is too large"},
		{"an infinite ratio", "must: x\nratio: .inf", "a number is wanted"},
		{"an unknown word in a list", "must: x\nwords: [x, z]", `words[1]: "z": one of x, y is wanted`},
		{"nothing in a list", "must: x\nwords: [x, ]\nlist: [~]", "list[0]: a mapping of keys and values is wanted, this is empty"},
		{"a list for a text", "must: [x]", "must: a text is wanted, this is a list"},
		{"a text for a list", "must: x\nwords: x", "words: a list is wanted, this is a text"},
		{"a text for a mapping", "must: x\nmap: x", "map: a mapping of keys and values is wanted"},
		{"an unknown key below a dotted one", "must: x\ndeep: {z: 1}", "deep.z: unknown key; known here are a, b"},
		{"an empty variable for a number", "must: x\nn: ${EMPTY}", "n: the variable is empty"},
		{"an unset variable, where it stands", "must: x\nwords:\n- x\n- ${NOPE}", "f.yaml:4: words[1]: the environment variable NOPE is not set"},
		{"a variable without its end", "must: ${NUMBER", "is not a variable"},
		{"a private-use character", "must: \uE000" + "0\uE001", "private-use characters"},
		{"bytes that are no text", "must: \xff", "not UTF-8"},
		{"a key that is a list", "? [a]\n: b", "a key must be a word"},
		{"an anchor on a key", "&a must: x", "anchors"},
		{"a tag", "must: !!str 1", "tags are not taken"},
		{"a custom tag", "must: !x y", "tags are not taken"},
		{"a second document that is broken", "must: x\n---\n{", "f.yaml"},
		{"an alias of nothing", "must: *x", "not YAML"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, d := decode(tc.text, Strict)
			err := d.Problems().Err()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v\nwant … %s …", err, tc.want)
			}
		})
	}
	t.Run("secrets and variables are not quoted", func(t *testing.T) {
		_, d := decode("must: x\nhash: hunter2\nkeys: [hunter2]\nn: ${file:/secret}\nenum: ${file:/secret}\nre: '${file:/secret}('\n", Strict)
		if ps := d.Problems(); len(ps) != 5 {
			t.Error(ps)
		}
		if text := d.Problems().Error(); strings.Contains(text, "hunter2") {
			t.Error(text)
		}
	})
	t.Run("without variables every one is refused, but none in a comment", func(t *testing.T) {
		d := Parse("f.yaml", []byte("must: '${HOME}' # ${HOME}\ntext: ok\n"), nil)
		ps := d.Problems()
		if len(ps) != 1 || ps[0].What != Refused || ps[0].Reason != Refused {
			t.Error(ps)
		}
	})
}
