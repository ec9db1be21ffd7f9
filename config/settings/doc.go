// Package settings resolves the flat settings of _vance/config/settings.yaml by
// their cascade, key by key: project, tenant, system, bundled.
//
// It must not know what a setting does, only which names the program asks for.
package settings
