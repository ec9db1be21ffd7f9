// Package strictyaml reads one YAML document and remembers where everything
// stands, so that a complaint can name file, line and key. It refuses what makes
// a configuration file surprising: several documents, anchors, aliases, merge
// keys, duplicate keys, unknown keys and values of another type.
//
// Variables (${NAME}, ${NAME:-default}, ${file:PATH}) are replaced in values
// after the text has been parsed: what the environment holds cannot change the
// structure of a file.
//
// It knows nothing of what the keys mean, and no complaint quotes a value that
// came out of a variable or stands in a field marked as secret.
package strictyaml
