// Package reportpage writes a billing period as one HTML page that needs
// nothing else: no network, no script, no font. It can be mailed, kept, printed
// and read without colour.
//
// Its size does not grow with the number of customers.
package reportpage
