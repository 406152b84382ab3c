# holder.pl FILE COMMANDS SAYS: locks FILE by fcntl(2), and keeps it open and locked while it executes commands from the
# fifo COMMANDS: "write N" writes block N without syncing, "sync N" syncs, "end" ends. It confirms each by creating the
# file SAYS.COMMAND.N.
use strict;
use warnings;
use Fcntl;
use IO::Handle;

my ($path, $commands, $says) = @ARGV;
sub say_so { open(my $file, '>', "$says.$_[0]") or die "$says.$_[0]: $!"; close($file); }

open(my $file, '+<', $path) or die "$path: $!";
my $lock = pack('s s x4 q q l x4', F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die "lock: $!";
open(my $fifo, '+<', $commands) or die "$commands: $!";
say_so('held.0');
while (my $line = <$fifo>) {
    my ($command, $number) = split(' ', $line);
    if ($command eq 'write') {
        sysseek($file, $number * 65536, 0) or die "seek: $!";
        syswrite($file, chr(ord('a') + $number) x 65536) == 65536 or die "write: $!";
    } elsif ($command eq 'sync') {
        $file->sync or die "sync: $!";
    } else {
        last;
    }
    say_so("$command.$number");
}
close($file) or die "close: $!";
say_so('end.0');
