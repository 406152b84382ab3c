# lock.pl r|w wait|try START LENGTH FILE COMMAND…: locks a range by fcntl(2), and runs COMMAND meanwhile; exits with 11
# if the lock is denied. lock.pl r|w test START LENGTH FILE: prints the conflicting lock, or "unlocked".
use strict;
use warnings;
use Fcntl;

my ($type, $how, $start, $length, $path, @command) = @ARGV;
my $layout = 's s x4 q q l x4';
my $lock = pack($layout, $type eq 'w' ? F_WRLCK : F_RDLCK, 0, $start, $length, 0);
open(my $file, '+<', $path) or die "$path: $!";
if ($how eq 'test') {
    fcntl($file, F_GETLK, $lock) or die "F_GETLK: $!";
    my ($held, undef, $first, $count) = unpack($layout, $lock);
    print $held == F_UNLCK ? "unlocked\n" : ($held == F_WRLCK ? 'w' : 'r') . " $first $count\n";
    exit 0;
}
if (!fcntl($file, $how eq 'wait' ? F_SETLKW : F_SETLK, $lock)) {
    exit 11 if $!{EAGAIN} || $!{EACCES};
    die "lock: $!";
}
exit(system(@command) >> 8);
